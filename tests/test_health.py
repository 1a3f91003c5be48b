"""Finite but useless training is said once; NaN and exceptions are blamed on the piece that made them."""

import gzip
import json
import math
from pathlib import Path

import pytest
import torch
from helpers import CONTINUOUS, PIXELS, fill_replay, make_agent
from tiny_runs import Walk, make_continuous, tiny
from torch import nn

import voidrl
from voidrl.agent.diagnosis import diagnose_metrics
from voidrl.agent.optimizers import Optimizers
from voidrl.errors import ConfigError, NonFiniteError, PieceFailedError
from voidrl.methods.base import Method
from voidrl.presets.presets import preset_values
from voidrl.representations.base import Representation
from voidrl.representations.simclr import SimCLR
from voidrl.runs import checkpoint
from voidrl.training import health
from voidrl.training.build import build_config
from voidrl.training.health import ROWS, HealthMonitor
from voidrl.types import Loss, NonFinite

RESULTS = Path(__file__).parents[1] / "results"
NAN = float("nan")


def monitor(spec=PIXELS, constant_reward=False, **changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    config = build_config(spec, [{"phase": "pretrain"}, changes])
    return HealthMonitor(config, constant_reward=constant_reward)


def said(watch, train, count=ROWS, updates=5000):
    """What is said about the same row, `count` times."""
    row = {f"train/{key}": value for key, value in train.items()} | {"updates": updates}
    return [sentence for i in range(count) for sentence in watch.check(1000 * i, row)]


CHANCE = {"contrast_loss": math.log(1023), "contrast_accuracy": 1 / 1023}
CHANCE |= {"reward_mean": 1.0, "reward_std": 0.3}


# Rows


def test_a_contrastive_loss_at_chance_is_said_once_with_values_and_remedies():
    watch = monitor(representation="simclr", representation__batch_size=512)
    assert said(watch, CHANCE, ROWS - 1) == []
    (sentence,) = said(watch, CHANCE, 4)
    assert "collapsed" in sentence
    assert "contrast_accuracy is 0.00098 and train/contrast_loss 6.93" in sentence
    assert "among 1023 candidates" in sentence
    assert "representation.warmup_updates = 1000" in sentence


def test_a_contrastive_loss_that_learns_is_not_mentioned():
    simclr = {"name": "simclr", "batch_size": 512}
    assert said(monitor(representation=simclr), CHANCE, 9, 400) == []  # too early
    assert said(monitor(representation=simclr | {"warmup_updates": 5000}), CHANCE, 9) == []
    # A high temperature keeps the loss at chance.
    assert said(monitor(representation=simclr), CHANCE | {"contrast_accuracy": 0.3}, 9) == []


def test_symptoms_must_show_in_rows_that_follow_each_other():
    watch = monitor(representation="simclr", representation__batch_size=512)
    for _ in range(4):
        assert said(watch, CHANCE, ROWS - 1) == []
        assert said(watch, CHANCE | {"contrast_loss": 5.0}, 1) == []
        assert watch.check(0, {"updates": 5000, "reward/extrinsic": 0.0}) == []  # no update in this row


def test_a_small_z_is_healthy_and_one_that_is_constant_is_not():
    watch = monitor(CONTINUOUS, representation="icm")
    base = {"reward_mean": 1.0, "reward_std": 0.1}
    assert said(watch, base | {"z_std": 0.005}, 9) == []
    assert "train/z_std is 0" in said(watch, base | {"z_std": 0.0})[0]


def test_a_constant_reward_is_said_unless_it_is_meant():
    constant = {"reward_mean": 2.0, "reward_std": 1e-7}
    (sentence,) = said(monitor(CONTINUOUS), constant)
    assert "intrinsic reward of method 'apt' is constant, train/reward_mean is 2 " in sentence
    assert said(monitor(CONTINUOUS), {"reward_mean": 0.0, "reward_std": 0.0}) != []
    assert said(monitor(CONTINUOUS), constant | {"reward_std": 0.01}) == []
    assert said(monitor(CONTINUOUS, constant_reward=True), constant) == []
    assert said(monitor(CONTINUOUS, phase="finetune"), {"reward_mean": 0.0, "reward_std": 0.0}) == []
    assert said(monitor(CONTINUOUS, learner__batch_size=1), constant) == []


def test_a_normalized_reward_is_judged_by_what_the_method_gave():
    """Standardized rewards have mean 0, next to which no deviation is small, and noise has deviation 1."""
    watch = monitor(CONTINUOUS, intrinsic_normalization="standardize")
    healthy = {"reward_mean": 0.0, "reward_std": 1.0, "intrinsic_mean": 2.0, "intrinsic_std": 0.01}
    assert said(watch, healthy | {"q_mean": 30.0}, 9) == []
    constant = {"reward_mean": 0.0, "reward_std": 1e-8, "intrinsic_mean": 2.0, "intrinsic_std": 1e-7}
    (sentence,) = said(watch, constant)
    assert "is constant, train/intrinsic_mean is 2 and train/intrinsic_std 1e-07" in sentence


def test_values_beyond_what_rewards_add_up_to_are_said():
    watch = monitor(CONTINUOUS, learner__discount=0.99)
    normal = {"reward_mean": 0.5, "reward_std": 0.5, "q_mean": 40.0, "q_target": 40.0, "value_limit": 50.0}
    assert said(watch, normal | {"q_mean": 99.0}, 9) == []
    (sentence,) = said(watch, normal | {"q_mean": -101.0})
    assert "q_mean is -101, and the rewards seen so far add up to 50 at most" in sentence
    assert "learner.learning_rate" in sentence
    soft = normal | {"temperature": 0.5, "policy_entropy": 1.0}  # the entropy bonus is possible too
    assert said(monitor(CONTINUOUS, learner__discount=0.99), soft | {"q_mean": 199.0}, 9) == []
    assert said(monitor(CONTINUOUS, learner__discount=0.99), soft | {"q_mean": 201.0}) != []
    first = {"reward_mean": 0.0, "reward_std": 0.0, "q_mean": 80.0, "value_limit": 0.0}  # no reward yet
    watch = monitor(CONTINUOUS, phase="finetune", finetune__heads="pretrained")
    assert said(watch, first, 9) == []
    (sentence,) = said(watch, first | {"value_limit": 1.0})
    assert f"impossible in {watch.config.env.id}" in sentence
    assert "finetune.heads = 'auto'" in sentence


RESULTS_WITH_ROWS = sorted(RESULTS.glob("urlb/*/seed*/metrics.jsonl.gz"))


def runs_of(path):
    """The rows of each run in the metrics of one seed."""
    runs = {}
    for line in gzip.decompress(path.read_bytes()).splitlines():
        row = json.loads(line)
        runs.setdefault(row["task"], []).append({name: v for name, v in row.items() if name != "task"})
    return runs.items()


@pytest.mark.parametrize("path", RESULTS_WITH_ROWS[::3], ids=lambda path: path.parts[-3])
def test_none_of_the_published_runs_gives_a_warning(path):
    method = next((name for name in ("rnd", "diayn") if name in path.parts[-3]), "apt")
    for task, found in runs_of(path):
        layers = [preset_values("urlb-states", method), {"phase": found[-1]["phase"], "env": {"dmc": {}}}]
        watch = HealthMonitor(build_config(CONTINUOUS, layers))
        if not {"paper", "unclamped"} & {*path.parts[-3].split("-")}:  # whose values did diverge
            assert [text for row in found for text in watch.check(row["step"], row)] == [], task


# Runs


class Blind(SimCLR):
    """A contrastive representation that has collapsed: z does not depend on the state."""

    def encode(self, obs):
        return super().encode(obs) * 0 + 0.5


class Same(Method):
    def reward(self, batch, latents):
        return torch.full_like(batch.discount, 0.7)


class Meant(Same):
    constant_reward = True


def warnings_of(run):
    """Messages in the log, without their time."""
    lines = (run / "log.txt").read_text().splitlines()
    return [line.partition("warning at ")[2] for line in lines if "warning at " in line]


LONG = {"learner__batch_size": 8, "log__log_every_steps": 10, "log__checkpoint_every_steps": 1000}


@pytest.fixture
def impatient(monkeypatch):
    """Judge after a few updates, so that a run may be short."""
    monkeypatch.setattr(health, "REWARD_UPDATES", 10)
    monkeypatch.setattr(health, "CONTRAST_UPDATES", 20)


@pytest.mark.usefixtures("impatient")
def test_a_representation_whose_z_is_constant_is_said_in_a_run(tmp_path, capsys):
    config = tiny(representation=Blind, **LONG)
    voidrl.pretrain(Walk, "apt", steps=70, out=tmp_path / "run", config=config)
    found = " ".join(warnings_of(tmp_path / "run"))
    assert found.count("intrinsic reward of method 'apt' is constant") == 1
    assert found.count("train/z_std is") == 1
    assert found.count("train/contrast_accuracy is 0.067") == 1  # of 15 candidates
    assert "train/z_std is" in capsys.readouterr().err


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("method", "count"), [(Same, 1), (Meant, 0)])
def test_a_constant_reward_is_said_in_a_run_with_n_step_returns_too(tmp_path, method, count):
    voidrl.pretrain(Walk, method, steps=60, out=tmp_path / "run", config=tiny(learner__n_step=3, **LONG))
    assert len(warnings_of(tmp_path / "run")) == count


# NaN


class BadReward(Method):
    """NaN in one call alone."""

    calls = 0

    def reward(self, batch, latents):
        BadReward.calls += 1
        return batch.discount * (NAN if BadReward.calls == 30 else 1.0) + latents.z_next[:, 0]


class BadLoss(Method):
    calls = 0

    def __init__(self, spec, config, representation):
        super().__init__(spec, config, representation)
        self.net = nn.Linear(representation.dim, 1)

    def losses(self, batch, latents):
        BadLoss.calls += 1
        factor = NAN if BadLoss.calls == 13 else 1.0  # after a rehearsal
        yield Loss("method", self.net(latents.z).mean() * factor, {})

    def reward(self, batch, latents):
        return self.net(latents.z_next)[:, 0]


class BadRepresentation(Representation):
    has_loss = True
    calls = 0

    def loss(self, views):
        BadRepresentation.calls += 1
        factor = NAN if BadRepresentation.calls == 12 else 1.0  # the first is a rehearsal
        return self.encode(views.obs()).mean() * factor, {}


class BadSkill(Method):
    skill_dim = 2
    calls = 0

    def reward(self, batch, latents):
        return batch.skill.sum(1) + batch.next_obs[:, 0]

    def sample_skill(self, episode_steps):
        BadSkill.calls += 1
        return torch.full((len(episode_steps), 2), NAN if BadSkill.calls == 4 else 1.0)


def refused(tmp_path, env=Walk, method="apt", **changes):
    """The sentence with which a run ends, none of whose checkpoints holds NaN."""
    for cls in (BadReward, BadLoss, BadRepresentation, BadSkill):
        cls.calls = 0
    run = tmp_path / "run"
    with pytest.raises(NonFiniteError) as caught:
        voidrl.pretrain(env, method, steps=99, out=run, config=tiny(**changes))
    for step in checkpoint.list_steps(run / "checkpoints"):
        saved = checkpoint.load(run / "checkpoints" / f"step_{step:012d}")
        for file in saved.files:
            for name, tensor in saved.tensors(file).items():
                assert not tensor.is_floating_point() or tensor.isfinite().all(), (step, name)
    return str(caught.value)


HUGE = 1e18
BAD_REWARD = ["the intrinsic reward of method 'test_health:BadReward' is not finite at update 29,",
              "look at `reward` of test_health:BadReward for", "checkpoint of step 20 is kept"]  # fmt: skip
BLAMED = {  # the changes of a run, and what its last sentence holds
    "a reward that is NaN once": ({"method": BadReward, "log__log_every_steps": 50}, BAD_REWARD),
    "a reward, by a learner some of whose updates have losses that others do not have": (
        {"env": make_continuous, "method": BadReward, "learner": "sac", "learner__actor_every_updates": 3,
         "log__log_every_steps": 50},
        BAD_REWARD,
    ),
    "a loss, although it logs nothing": (
        {"method": BadLoss},
        ["the loss of method 'test_health:BadLoss' is not finite at update 12,", "lower method.learning_rate",
         "look at `losses` of test_health:BadLoss"],
    ),
    "a representation": (
        {"representation": BadRepresentation},
        ["the loss of representation 'test_health:BadRepresentation' is not finite at update 11,",
         "look at `loss` of test_health:BadRepresentation", "representation.learning_rate"],
    ),
    "z, one update before the loss": (
        {"representation": "simclr", "representation__learning_rate": HUGE},
        ["of representation 'simclr' is not finite", "representation.learning_rate (1e+18 now)"],
    ),
    "a learner": (
        {"env": make_continuous, "learner": "ddpg", "learner__learning_rate": HUGE},
        ["of learner 'ddpg'", "try a lower learner.learning_rate (1e+18 now)"],
    ),
    "a skill, before it is stored": (
        {"method": BadSkill},
        ["a skill of method 'test_health:BadSkill' is not finite", "look at `sample_skill` of test_health:"],
    ),
    "an action, on whose NaN it was": (  # the policy acts before the next row is read
        {"env": make_continuous, "method": BadLoss, "learner": "ddpg", "log__log_every_steps": 19},
        ["of method 'test_health:BadLoss' is not finite at update 12,"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BLAMED)
def test_what_is_not_finite_is_blamed_on_the_piece_that_made_it(tmp_path, case):
    changes, parts = BLAMED[case]
    sentence = refused(tmp_path, **changes)
    assert [part for part in parts if part not in sentence] == [], sentence


def test_weights_that_become_nan_in_the_last_update_before_a_checkpoint_are_not_saved(tmp_path, monkeypatch):
    minimize = Optimizers.minimize

    calls = iter(range(1, 1000))

    def counted(self, names, loss):
        minimize(self, names, loss)
        if next(calls) == 12:  # the update at step 20
            self.parameters(names[0])[0].data.fill_(NAN)

    monkeypatch.setattr(Optimizers, "minimize", counted)
    sentence = refused(tmp_path)
    assert "weight learner." in sentence
    assert "at update 12, noticed at step 20: the losses were finite" in sentence
    assert "no checkpoint was written yet" in sentence


def test_within_an_update_the_first_that_was_computed_is_blamed():
    agent = make_agent(CONTINUOUS, learner="sac", learner__actor_every_updates=3)
    replay = fill_replay(CONTINUOUS)
    for index in range(3):
        keys = list(agent.update(replay, index))
    order = {key: i for i, key in enumerate(keys)}
    owners = [agent.metric_owners[key] for key in keys]
    assert owners.index("reward") < owners.index("learner")
    # Update 11 is the first of its variant, and 12 of the one with the actor: a NaN of 11 is older.
    variants = {agent.learner.variant(u): u for u in (11, 12)}
    plain, with_actor = (next(v for v, u in variants.items() if u == update) for update in (11, 12))
    found = [
        NonFinite(with_actor, "actor_loss", 0, 9),
        NonFinite(plain, "critic_loss", 0, order["critic_loss"]),
        NonFinite(plain, "reward_mean", 0, order["reward_mean"]),
    ]
    culprit = diagnose_metrics(agent, found, range(10, 20))
    assert culprit.what == "the intrinsic reward of method 'apt'"
    assert culprit.update == 11
    assert diagnose_metrics(agent, [], range(10, 20)) is None


# Exceptions


class Raises(Method):
    where = "reward"
    calls = 0

    def _maybe(self, where):
        Raises.calls += where == Raises.where
        if where == Raises.where and Raises.calls > 25:
            raise ZeroDivisionError("out of luck")

    def reward(self, batch, latents):
        self._maybe("reward")
        return batch.discount + latents.z_next[:, 0]

    def observe(self, obs, skill, env, representation):
        self._maybe("observe")


@pytest.mark.parametrize("where", ["reward", "observe"])
def test_an_exception_of_a_method_is_one_sentence_with_the_traceback_in_the_log(tmp_path, monkeypatch, where):
    monkeypatch.setattr(Raises, "where", where)
    monkeypatch.setattr(Raises, "calls", 0)
    with pytest.raises(PieceFailedError) as caught:
        voidrl.pretrain(Walk, Raises, steps=99, out=tmp_path / "run", config=tiny())
    sentence = str(caught.value)
    assert "method 'test_health:Raises' failed in `_maybe`, line " in sentence
    assert "test_health.py (ZeroDivisionError: out of luck), at step 2" in sentence or "at step 3" in sentence
    assert "the checkpoint of step 20 is kept" in sentence
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback" in log
    assert f"in {where}" in log
    assert voidrl.load(tmp_path / "run").steps == 20


class NoArguments(Method):
    def __init__(self):
        super().__init__()


class NoConfig(Method):
    Config = dict


class NoReward(Method):
    pass


class OneLoss(Meant):
    def losses(self, batch, latents):
        return latents.z.mean()


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (NoArguments, r"method '.*:NoArguments' cannot be built \(TypeError: .* takes 1 positional argument"),
        (NoConfig, r"Config of method .*NoConfig.*: expected a dataclass derived from voidrl.config.MethodC"),
        (NoReward, r"method '.*:NoReward' does not define `reward`"),
        (OneLoss, r"losses of method '.*:OneLoss' yielded .*: expected Loss\(optimizer, value, metrics\)"),
    ],
)
def test_a_method_that_is_written_wrong_is_one_sentence(method, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        voidrl.pretrain(Walk, method, steps=30, out=tmp_path / "run", config=tiny())
    assert not (tmp_path / "run").exists()


def test_an_error_of_our_own_is_not_blamed_on_a_custom_piece(tmp_path, monkeypatch):
    def broken(self, batch, reward, index):
        raise RuntimeError("ours")

    monkeypatch.setattr("voidrl.learners.dqn.DQN.losses", broken)
    with pytest.raises(RuntimeError, match=r"^ours$"):
        voidrl.pretrain(Walk, Meant, steps=30, out=tmp_path / "run", config=tiny())
