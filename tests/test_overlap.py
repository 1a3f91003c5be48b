"""Scoring a sample while the update before is still learned changes nothing, where that is allowed."""

import pytest
import torch
from helpers import (
    CONTINUOUS,
    PIXELS,
    PIXELS_CONTINUOUS,
    fill_replay,
    make_agent,
    moved,
    small_method,
    snapshot,
)

from voidrl.config import registry
from voidrl.engine.overlap import can_be_concurrent, scoring_needs
from voidrl.representations.base import Representation

METHODS = [name for name in registry.names("method") if not registry.find("method", name).learner]
ALL_TRAIN = {"share_encoder": "all", "encoder_trainers": ("representation", "learner")}
RELU = {"name": "simclr", "encoder.activation": "relu"}
SPR = {"name": "spr", "projection": "head"}
OWN = {"representation": "learner"}  # f is the learner's encoder
BY_CONTRAST = {"share_encoder": "stack", "encoder_trainers": ("representation",), "representation": RELU}
CASES = {
    "a separate encoder": (PIXELS, {"representation": "simclr"}, "nothing"),
    "URLB's dynamics": (CONTINUOUS, {"learner": "ddpg", "representation": "icm"}, "nothing"),
    "raw vectors": (CONTINUOUS, {"learner": "sac", "representation": "identity"}, "nothing"),
    "from scratch": (PIXELS, {"phase": "train"}, "nothing"),
    "the learner's encoder": (PIXELS, OWN, "encoder"),
    "the learner's encoder, with an actor": (PIXELS_CONTINUOUS, {"learner": "sac", **OWN}, "encoder"),
    "a copy of the learner's encoder": (PIXELS, {**OWN, "method": small_method("proto")}, "everything"),
    "two losses, one encoder": (PIXELS, {"representation": "simclr", **ALL_TRAIN}, "everything"),
    "the encoder of another loss": (PIXELS, BY_CONTRAST, "everything"),
    "the learner's targets": (PIXELS, {"phase": "train", "representation": SPR}, "everything"),
    "a critic of the method": (PIXELS, {"method": small_method("visr")}, "everything"),
    "priorities": (PIXELS, {"phase": "train", "replay__priority_exponent": 0.5}, "everything"),
}


def replay_for(agent, spec):
    sizes = {"skill_dim": agent.method.skill_dim, "note_dim": agent.note_dim}
    return fill_replay(spec, **sizes, config=agent.config.replay)


@pytest.mark.parametrize("case", CASES)
def test_what_scoring_needs_of_the_learner(case):
    spec, options, expected = CASES[case]
    agent = make_agent(spec, **options)
    assert scoring_needs(agent, replay_for(agent, spec)) == expected


def score(agent, replay, seed):
    torch.manual_seed(seed)
    scored = agent.score(replay)
    return {
        "reward": scored.reward,
        **scored.batch._asdict(),
        **{f"of {k}": v for k, v in scored.metrics.items()},
    }


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        *((CONTINUOUS, {"learner": "ddpg", "method": small_method(name)}) for name in METHODS),
        *((spec, options) for spec, options, _ in CASES.values()),
    ],
    ids=lambda value: str(value.get("method", {}).get("name", "")) if isinstance(value, dict) else "",
)
def test_samples_scored_early_are_those_scored_late(spec, options):
    early, late = make_agent(spec, **options), make_agent(spec, **options)
    if not early.learns:
        pytest.skip("nothing is learned")
    replay = replay_for(early, spec)
    needs = scoring_needs(early, replay)
    if needs == "everything":
        pytest.skip("one after the other")
    for update in range(3):
        found = {}
        for agent in (early, late):
            torch.manual_seed(update)
            scored, index = agent.score(replay), update % agent.learner.period
            torch.manual_seed(100 + update)

            def score_again(agent=agent, found=found, seed=200 + update):
                training, random = agent.learner.training, torch.get_rng_state()
                found[agent] = score(agent, replay, seed)
                agent.learner.train(training)
                torch.set_rng_state(random)

            if agent is early and needs == "nothing":
                score_again()
            agent.learn(
                replay, scored, index, *([score_again] if (agent, needs) == (early, "encoder") else [])
            )
            if agent is late:
                score_again()
        assert not moved(snapshot(found[early]), found[late])
        assert not moved(snapshot(early.tensors()), late.tensors())


SHARED = {"share_encoder": "stack", "encoder_trainers": ("representation", "learner")}
NORMED = {"encoder.activation": "relu", "encoder.spectral_norm_iterations": 1}
NORMED_LEARNER = {"learner__encoder__spectral_norm_iterations": 1}
BESIDE = {
    "dynamics": ({"representation": {"name": "icm", "encoder.activation": "relu"}, **SHARED}, True),
    "contrast": ({"representation": RELU, **SHARED}, True),
    "another state": ({"representation": {"name": "atc", "encoder.activation": "relu"}, **SHARED}, True),
    "the learner's batch": ({"representation": {**RELU, "batch_size": 0}, **SHARED}, True),
    "spectral norm": ({"representation": {"name": "icm", **NORMED}, **SHARED, **NORMED_LEARNER}, False),
    "the learner's targets": ({"phase": "train", "representation": SPR}, False),
    "an encoder of its own": ({"representation": "icm"}, False),
}


@pytest.mark.parametrize("case", BESIDE)
def test_a_loss_beside_the_rest_of_its_update_changes_nothing(case, monkeypatch):
    """Else results would depend on which of the two streams is ahead."""
    options, expected = BESIDE[case]
    agent = make_agent(PIXELS, **options)
    assert can_be_concurrent(agent) == expected
    if not expected:
        return
    replay, steps = replay_for(agent, PIXELS), []
    inner = type(agent).train_representation

    def step(agent, *args):
        before = snapshot({**agent.tensors(), **agent.optimizers.tensors()})
        metrics = inner(agent, *args)
        steps.append(moved(before, {**agent.tensors(), **agent.optimizers.tensors()}))
        return metrics

    monkeypatch.setattr(type(agent), "train_representation", step)
    for update in range(2):
        agent.update(replay, update)
    learning_rate = {"representation_rate"}  # which only the optimizer reads, after both
    assert [changed - learning_rate for changed in steps] == [set(), set()]


@pytest.mark.parametrize("reads", [False, True])
def test_views_carry_the_learner_only_for_a_representation_that_says_it_reads_it(reads):
    """Or a loss could run at the same time as the updates of what it reads."""
    found = []

    class Reading(Representation):
        has_loss, reads_learner = True, reads

        def loss(self, views):
            found.append(views.learner)
            return self.encode(views.obs()).square().mean(), {}

    agent = make_agent(PIXELS, representation=Reading)
    agent.update(replay_for(agent, PIXELS), 0)
    assert found[-1] is (agent.learner if reads else None)
    assert not reads or scoring_needs(agent, replay_for(agent, PIXELS)) == "everything"
