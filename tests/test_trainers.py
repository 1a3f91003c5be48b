"""Who trains what: which losses reach which weights, in every phase, and what is refused."""

import pytest
import torch
from helpers import CONTINUOUS, DISCRETE, PIXELS, fill_replay, make_agent, moved, parameters_of, snapshot

from voidrl.errors import ConfigError

PHASES = {
    "pretrain": {"phase": "pretrain"},
    "finetune": {"phase": "finetune"},
    "frozen": {"phase": "finetune", "finetune__encoder_learning_rate": 0},
    "train": {"phase": "train"},
}
# Representation, share_encoder, encoder_trainers and the losses that train f while pre-training. In other
# phases the learner trains what it uses, together with an auxiliary loss.
CASES = [
    ("simclr", "nothing", (), {"representation"}),
    ("simclr", "all", (), {"representation"}),
    ("simclr", "all", ("learner",), {"critic"}),
    ("simclr", "all", ("representation", "learner"), {"representation", "critic"}),
    ("simclr", "stack", (), {"representation"}),
    ("fixed", "nothing", (), set()),
    ("fixed", "all", (), set()),
    ("learner", "nothing", (), {"critic"}),
    ("spr", "nothing", (), {"representation", "critic"}),
    ("combined", "stack", ("representation", "learner"), {"representation", "critic"}),
]


def record_steps(agent, replay, updates=2):
    """For each set of optimizers that stepped together: the weights that moved."""
    seen, minimize = {}, agent.optimizers.minimize

    def watched(names, loss):
        before = snapshot(parameters_of(agent))
        minimize(names, loss)
        seen.setdefault(frozenset(names), set()).update(moved(before, parameters_of(agent)))

    agent.optimizers.minimize = watched
    for i in range(updates):
        agent.update(replay, i % agent.learner.period)
    return seen


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("representation", "share", "trainers", "expected"), CASES)
def test_an_encoder_is_trained_by_its_declared_losses_alone(representation, share, trainers, expected, phase):
    options = {"representation": representation, "share_encoder": share, "encoder_trainers": trainers}
    encoder = {"activation": "relu"}
    options |= {"representation__encoder": encoder, "learner__encoder": encoder, **PHASES[phase]}
    auxiliary = representation in ("spr", "curl")
    if phase == "frozen" and auxiliary:
        with pytest.raises(ConfigError, match="would train an encoder that stays"):
            make_agent(PIXELS, **options)
        return
    agent, replay = make_agent(PIXELS, **options), fill_replay(PIXELS)

    # Every trainable weight is in exactly one optimizer.
    optimized = [p for name in agent.optimizers for p in agent.optimizers.parameters(name)]
    assert len(optimized) == len(set(optimized))
    assert set(optimized) == {p for p in agent.parameters() if p.requires_grad}

    seen = record_steps(agent, replay)
    names = {p: n for n, p in agent.named_parameters()}
    for together, touched in seen.items():
        held = {names[p] for name in together for p in agent.optimizers.parameters(name)}
        assert touched <= held

    shared = share != "nothing" or agent.representation.uses_learner_encoder
    if phase != "pretrain":
        learns = shared and phase != "frozen" and representation != "fixed"
        expected = ({"critic"} if learns else set()) | ({"representation"} if auxiliary else set())
    if phase == "pretrain":  # every optimizer has something to do
        assert set().union(*seen) == set(agent.optimizers)
    part = agent.representation.encoder.stack
    weights = {names[p] for p in part.parameters()}
    stepped = [together for together, touched in seen.items() if touched & weights]
    assert stepped == ([frozenset(expected)] if expected else [])


def test_two_losses_of_one_encoder_are_one_gradient():
    """The gradient is linear in the weight of the representation's loss."""
    grads = {}
    for weight in (1.0, 2.0, 4.0):
        options = {"representation__loss_weight": weight, "learner__max_grad_norm": 0}
        agent = make_agent(PIXELS, representation="spr", **options)
        torch.manual_seed(0)
        agent.update(fill_replay(PIXELS))
        grads[weight] = agent.learner.encoder.stack[0].weight.grad.clone()
    once = grads[2.0] - grads[1.0]
    assert once.abs().max() > 0
    torch.testing.assert_close(grads[4.0] - grads[2.0], 2 * once, atol=1e-6, rtol=1e-3)


def test_a_method_can_train_f_while_the_representations_loss_trains_its_heads():
    options = {"method": "diayn", "method__num_skills": 3, "representation": "simclr"}
    agent = make_agent(PIXELS, encoder_trainers=("method",), **options)
    seen = record_steps(agent, fill_replay(PIXELS, skill_dim=3))
    f = {f"representation.encoder.{name}" for name, _ in agent.representation.encoder.named_parameters()}
    assert not seen[frozenset({"representation"})] & f
    assert seen[frozenset({"method", "encoder"})] >= f


BARE = {"stack": "mlp", "hidden_dim": 0, "feature_dim": 0}
REFUSED = {  # by the observations: what is asked for, and what the sentence holds
    "vectors": [
        ({"representation": "identity", "share_encoder": "all"},
         "share_encoder = 'all' cannot be used with representation 'identity'.*use simclr or fixed"),
        ({"representation": "simclr", "share_encoder": "stack"},
         "share_encoder = 'stack' cannot be used with vector 4.*use 'nothing' or 'all'"),
        ({"method": "diayn", "representation": "identity", "encoder_trainers": ("method",)},
         "'identity', which has no encoder: leave it out"),
        ({"method": "icm", "representation": "identity"},
         "method 'icm' cannot be used with representation 'identity'.*use representation icm"),
        ({"representation": "curl"},
         "'curl' cannot be used on vector 4.*it contrasts augmented images; use spr, icm or identity"),
        ({"representation": "spr", "learner__encoder": BARE},
         "there is no encoder to train; set one, such as feature_dim = 50"),
        ({"method": "diayn", "method__skill_every_steps": 2, "learner__n_step": 3},
         r"method\.skill_every_steps = 2 cannot be used with learner\.n_step = 3.*use 3 or more"),
        ({"method": "diayn", "finetune__warmup_actions": "random"},
         r"finetune\.warmup_actions = 'random' cannot be used with method 'diayn'.*use 'policy'"),
    ],
    "pixels": [
        ({"representation": "simclr", "share_encoder": "stack"},
         r"representation\.encoder\.activation = 'elu' and learner\.encoder\.activation = 'relu'"),
        ({"representation": "spr", "share_encoder": "stack"},
         "'spr': it uses the learner's encoder as a whole; use 'nothing'"),
        ({"representation": "fixed", "encoder_trainers": ("representation",)},
         r"encoder_trainers = \('representation',\).*'fixed' and .*: it has no loss"),
        ({"representation": "simclr", "encoder_trainers": ("learner",)},
         "it does not use that encoder; leave out 'learner', or use share_encoder = 'all'"),
        ({"representation": "fixed", "share_encoder": "all", "encoder_trainers": ("learner",)},
         "'fixed', whose encoder never learns: leave it out, or use simclr or icm"),
        ({"method": "rnd", "representation": "simclr", "encoder_trainers": ("representation",)},
         "representation 'simclr' and share_encoder = 'nothing': it has no loss, or nothing reads it"),
        ({"method": "apt", "encoder_trainers": ("method",)},
         "method 'apt' and .*: its losses do not reach the encoder; leave out 'method', or use diayn"),
        ({"representation": "simclr", "representation__auxiliary": True, "phase": "train"},
         "would train an encoder that nothing reads; use share_encoder = 'stack' or 'all'"),
    ],
    "continuous": [
        ({"learner": "ddpg", "finetune__encoder_learning_rate": 1e-4, "learner__encoder": BARE},
         r"finetune\.encoder_learning_rate = 0\.0001 cannot be used with learner 'ddpg'.*has no encoder"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "options", "sentence"), [(seen, *case) for seen, cases in REFUSED.items() for case in cases]
)
def test_what_cannot_work_is_refused_with_something_that_does(seen, options, sentence):
    spec = {"vectors": DISCRETE, "pixels": PIXELS, "continuous": CONTINUOUS}[seen]
    with pytest.raises(ConfigError, match=sentence):
        make_agent(spec, **options)


# Learning rates of a fine-tuned agent


def test_a_rate_of_zero_freezes_and_from_scratch_no_part_has_its_own():
    rates = {"first_layer_learning_rate": 0, "encoder_learning_rate": 0}
    tuned = make_agent(phase="finetune", finetune=rates)
    before = snapshot(parameters_of(tuned.learner))
    for _ in range(3):
        tuned.update(fill_replay())
    changed = moved(before, parameters_of(tuned.learner))
    assert changed
    assert not any(name.startswith("encoder.") or ".0." in name for name in changed)
    scratch = make_agent(phase="train", finetune=rates)
    before = snapshot(parameters_of(scratch.learner))
    scratch.update(fill_replay())
    assert any(name.startswith("encoder.") for name in moved(before, parameters_of(scratch.learner)))
