"""A frozen pre-trained encoder next to a new one: what stays, what learns, what is refused."""

import shutil

import numpy as np
import pytest
import torch
from helpers import (
    CONTINUOUS,
    DISCRETE,
    NORMED,
    PIXELS,
    PIXELS_CONTINUOUS,
    fill_replay,
    make_agent,
    moved,
    shake,
    snapshot,
)
from tiny_runs import Walk, assert_same_run, tiny

import voidrl
from voidrl.agent.reset import reset
from voidrl.config import FinetuneConfig, to_json
from voidrl.engine.host_reads import HostReads
from voidrl.errors import ConfigError
from voidrl.nets import ProgressiveEncoder
from voidrl.training import build
from voidrl.training.layers import config_sources, finetune_layers

STACK = {"representation": "simclr", "share_encoder": "stack", "representation__encoder__activation": "relu"}
CASES = {
    "dqn": (DISCRETE, {"representation": "simclr"}),
    "rainbow, stack": (PIXELS, {"learner": "rainbow", **STACK}),
    "dqn, all, normed": (PIXELS, {"share_encoder": "all", **NORMED}),
    "sac, f of the learner": (CONTINUOUS, {"learner": "sac", "representation": "learner"}),
    "ddpg": (PIXELS_CONTINUOUS, {"learner": "ddpg"}),
}


def pretrained(case, **more):
    """An agent that has moved away from its initial weights."""
    spec, options = CASES[case]
    return shake(make_agent(spec, **{**options, **more}), 0.1)


def adapted(case, source, column="learner", seed=1, **more):
    """An agent that fine-tunes `source`."""
    spec, options = CASES[case]
    tuning = {"phase": "finetune", "finetune__frozen_column": column, "finetune__heads": "random"}
    agent = make_agent(spec, seed=seed, **{**options, **tuning, **more})
    agent.load_pretrained(source.tensors())
    return agent


def frozen_names(agent):
    """Weights and buffers of the frozen column, by the names that the agent has for them."""
    kept = {id(t) for t in agent.learner.encoder.frozen.state_dict(keep_vars=True).values()}
    return {name for name, tensor in agent.tensors().items() if id(tensor) in kept}


@pytest.mark.parametrize("column", ["learner", "representation"])
@pytest.mark.parametrize("case", CASES)
def test_the_frozen_column_gives_the_pretrained_features_and_never_changes(case, column):
    source = pretrained(case)
    agent = adapted(case, source, column)
    replay = fill_replay(agent.spec, skill_dim=agent.method.skill_dim)
    obs = replay.observations(replay.sample(4))
    kept = source.learner.encoder if column == "learner" else source.representation.encoder
    with torch.no_grad():
        features, expected = agent.learner.encoder(obs), kept(obs)
    width = expected.shape[1]
    assert torch.equal(features[:, :width], expected)
    assert features.shape[1] == agent.learner.encoder.feature_dim > width
    assert torch.equal(agent.representation.encode(obs), source.representation.encode(obs))

    names, before = frozen_names(agent), snapshot(agent.tensors())
    for index in range(3):
        agent.update(replay, index)
    changed = moved(before, agent.tensors())
    assert names
    assert not changed & names  # spectral norm's vectors included
    assert {n for n, _ in agent.named_parameters() if n.startswith("learner.encoder.")} - names <= changed
    assert not any(n.startswith("representation.") for n in changed)
    assert torch.equal(agent.learner.encoder(obs)[:, :width], expected)
    trained = set(agent.optimizers.all_parameters())
    assert not trained & set(agent.learner.encoder.frozen.parameters())


def test_the_encoders_learning_rate_is_the_new_columns_and_an_update_reads_nothing_on_the_host():
    agent = adapted("dqn", pretrained("dqn"), finetune__encoder_learning_rate=0.25)
    new = [p for name, p in agent.learner.encoder.named_parameters() if not name.startswith("frozen.")]
    rates = {id(p): group["lr"] for group in agent.optimizers["critic"].param_groups for p in group["params"]}
    assert {rates.pop(id(p)) for p in new} == {0.25}
    assert set(rates.values()) == {agent.config.learner.learning_rate}
    replay = fill_replay()
    agent.update(replay)
    with HostReads() as reads:
        agent.update(replay)
    assert reads.first is None, reads.what


@pytest.mark.parametrize("case", ["rainbow, stack"])
def test_a_reset_leaves_the_frozen_column_alone(case):
    agent = adapted(case, pretrained(case), reset__keep=0.5)
    before, names = snapshot(agent.tensors()), frozen_names(agent)
    torch.manual_seed(5)
    reset(agent)
    changed = moved(before, agent.tensors())
    assert not changed & names
    assert "learner.encoder.stack.0.weight" in changed
    assert not any(name.startswith("representation.") for name in changed)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A pre-trained run on vectors."""
    out = tmp_path_factory.mktemp("source") / "run"
    config = tiny(representation="simclr", finetune__encoder_learning_rate=1e-6)
    voidrl.pretrain(Walk, steps=12, out=out, config=config)
    return out


def test_one_option_is_enough_and_runs_resume_bit_for_bit_without_the_pretrained_run(tmp_path, source):
    shutil.copytree(source, tmp_path / "source")
    # Detours end with the run, so that longer runs have others.
    options = {"config": {"finetune.frozen_column": "learner", "finetune.adapt": False}}
    for steps, out in ((30, "straight"), (20, "resumed")):
        agent = voidrl.finetune(tmp_path / "source", Walk, steps=steps, out=tmp_path / out, **options)
    tuning = agent.config.finetune
    assert (tuning.heads, tuning.encoder_learning_rate) == ("random", None)
    shutil.rmtree(tmp_path / "source")
    tuned = voidrl.resume(tmp_path / "resumed", steps=30)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=30)

    before, loaded = voidrl.load(source, device="cpu"), voidrl.load(tmp_path / "straight", device="cpu")
    voidrl.save_pretrained(tuned, tmp_path / "shared")
    shared = voidrl.from_pretrained(tmp_path / "shared", device="cpu")
    obs = torch.randn(4, 3)
    known = before.learner.encoder(obs)
    for each in (tuned, loaded, shared):
        assert isinstance(each.learner.encoder, ProgressiveEncoder)
        assert torch.equal(each.learner.encoder(obs)[:, : known.shape[1]], known)
        seen = obs.numpy()
        assert np.array_equal(each.act(seen), tuned.act(seen))
    with pytest.raises(ConfigError, match=r"frozen_column = 'learner' cannot be fine-tuned again, its heads"):
        voidrl.finetune(tuned, Walk, steps=9, out=tmp_path / "again")


def test_what_the_option_implies_says_where_it_comes_from_and_loses_to_what_is_given():
    run = make_agent(DISCRETE, representation="spr", finetune__encoder_learning_rate=0.0).config
    layers = finetune_layers(run, {"finetune.frozen_column": "learner"})
    config = build.build_config(DISCRETE, [layer.values for layer in layers])
    assert not config.representation.auxiliary
    sources = config_sources(config, layers)
    for field in ("finetune.heads", "finetune.encoder_learning_rate", "representation.auxiliary"):
        assert sources[field] == "finetune.frozen_column"
    # Named before pre-training, it is settled there, and the loss of f still stops in fine-tuning.
    both = {"finetune": {"frozen_column": "learner", "heads": "random", "encoder_learning_rate": 1.0}}
    early = build.build_config(DISCRETE, [to_json(run), both])
    assert early.representation.auxiliary
    layers = finetune_layers(early, None)
    assert not build.build_config(DISCRETE, [layer.values for layer in layers]).representation.auxiliary
    layers = finetune_layers(early, {"finetune.frozen_column": "none", "finetune.heads": "pretrained"})
    later = build.build_config(DISCRETE, [layer.values for layer in layers])
    assert later.representation.auxiliary
    assert later.finetune.heads == "pretrained"
    assert later.finetune.encoder_learning_rate == 1.0


BARE = {"stack": "mlp", "hidden_dim": 0, "feature_dim": 0}
ON_VECTORS = {"phase": "pretrain", "learner__encoder": BARE}


@pytest.mark.parametrize(
    ("column", "options", "sentence"),
    [
        ("learner", ON_VECTORS, "with learner 'dqn' on vector 4, 3 actions: it has no"),
        (
            "learner",
            {**ON_VECTORS, "phase": "finetune"},
            "with learner 'dqn' on vector 4, 3 actions: it has no",
        ),
        ("representation", {"representation": "identity"}, "with representation 'identity' on vector 4, 3"),
        ("representation", {"phase": "finetune", "representation": "spr"}, r"with representation\.aux"),
    ],
)
def test_what_cannot_work_is_refused_before_pre_training(column, options, sentence):
    tuning = {"finetune__frozen_column": column, "finetune__heads": "random"}
    with pytest.raises(ConfigError, match=f"frozen_column = '{column}' cannot be used {sentence}"):
        make_agent(DISCRETE, **options, **tuning)
    make_agent(DISCRETE, **{**options, "phase": "train", "representation": "simclr"}, **tuning)  # never tuned


def test_heads_and_rates_that_do_not_suit_a_frozen_column_are_refused():
    with pytest.raises(ConfigError, match=r"heads = 'actor' .*: expected 'random' with frozen_co"):
        FinetuneConfig(frozen_column="learner", heads="actor")
    with pytest.raises(
        ConfigError, match=r"encoder_learning_rate = 0.0 cannot be used: expected None or a n"
    ):
        FinetuneConfig(frozen_column="learner", heads="random", encoder_learning_rate=0.0)
    tuning = {"finetune": {"frozen_column": "learner", "heads": "pretrained"}}
    layers = finetune_layers(make_agent().config, tuning)
    with pytest.raises(ConfigError, match=r"finetune\.heads = 'pretrained' cannot be used"):
        build.build_config(DISCRETE, [layer.values for layer in layers])
