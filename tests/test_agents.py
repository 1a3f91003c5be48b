"""Agents by name: each is built, trains, resumes and evaluates; their traps; what they are refused for."""

from fractions import Fraction

import pytest
import torch
from helpers import CPU
from tiny_runs import assert_same_run, copy_as_of, make_continuous, newest

import voidrl
from voidrl.agent import Agent
from voidrl.config import merge
from voidrl.errors import ConfigError
from voidrl.presets.presets import AGENTS, FAMILIES, family, preset_for
from voidrl.training import build
from voidrl.training.build import layers_for
from voidrl.types import EnvSpec

BOX = {"action_low": (-1.0, -1.0), "action_high": (1.0, 1.0), "action_shape": (2,)}
ENVS = {"atari": "atari/pong", "dmc": "dmc/cheetah_run", "maze": "voidrl/PixelMaze-v0", "any": "Some-v0"}
TINY_MAZE = "voidrl/PixelMaze-v0?size=5&image_size=20&goal=far&slip=0.2&max_episode_steps=9"
DISCRETE = [name for name, agent in AGENTS.items() if "atari" in agent.families]
CONTINUOUS = [name for name, agent in AGENTS.items() if "dmc" in agent.families]
SMALL = {  # for all agents: the shapes of their networks stay
    "learner": {"hidden_dim": 8, "encoder.width": 0.05, "batch_size": 8},
    "replay": {"capacity_steps": 60},
    "device": "cpu",
}


def config_of(agent, kind, phase="train", shape=None, **changes):
    """The config of a command with an agent in a family of environments, and the spec it is for."""
    values = preset_for(ENVS[kind], agent)
    dmc, discrete = values["env"].get("dmc", {}), values["learner"]["name"] in ("dqn", "rainbow")
    size = dmc.get("image_size", 84)
    shapes = {"atari": (1, 84, 84), "dmc": (3, size, size), "maze": (3, 42, 42), "any": (4,)}
    shape = shape or ((17,) if dmc.get("observation") == "states" else shapes[kind])
    actions = {"num_actions": 6} if discrete else {"num_actions": 0, **BOX}
    stack = values["env"].get("frame_stack", 1)
    spec = EnvSpec(shape, len(shape) == 3, stack, raw_shape=shape, **actions)
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    layers = layers_for(ENVS[kind], phase, agent, merge(SMALL, changes))
    return build.build_config(spec, [layer.values for layer in layers]), spec


def pairs():
    for name, agent in AGENTS.items():
        for kind in agent.families:
            yield name, kind


@pytest.mark.parametrize(("agent", "kind"), [*pairs()])
def test_every_agent_is_built_in_its_environments(agent, kind):
    """From scratch and for pre-training, in which APT reads the learner's encoder."""
    shapes = [(4,), (3, 64, 64)] if kind == "any" else [None]
    for shape in shapes:
        if (agent, shape) in (("curl", (4,)), ("sac", (3, 64, 64)), ("drqv2", (4,))):
            continue  # for images, or not for them
        for phase in ("train", "pretrain"):
            config, spec = config_of(agent, kind, phase, shape)
            built = Agent(spec, config, CPU)
            assert built.config.representation.name in ("learner", "identity", "curl", "spr")
            obs = torch.zeros(2, *spec.obs_shape, dtype=torch.uint8 if spec.pixels else torch.float32)
            assert len(built.choose(obs, built.task_skill.expand(2, -1), deterministic=True)) == 2


UPDATES = {
    **dict.fromkeys(("der", "der-dopamine", "drq", "drq-eps", "curl"), 98_400),
    "dqn": 12_500,
    "rainbow": 20_000,
    "otrainbow": 640_000,
    "sr-spr": 1_568_000,
    **dict.fromkeys(("spr", "bbf"), 196_000),
}


@pytest.mark.parametrize(("agent", "updates"), UPDATES.items())
def test_updates_in_100k_steps_of_atari(agent, updates):
    config, _ = config_of(agent, "atari")
    rate = Fraction(str(config.updates_per_step))
    assert int((config.steps - config.warmup_steps) * rate) == updates
    log, env = config.log, config.env
    sizes = config.steps, env.num_envs, env.frame_stack, config.learner.encoder.feature_dim
    assert sizes == (100_000, 1, 4, 0)
    assert (log.eval_every_steps, log.eval_episodes) == (config.steps, 100)  # once, at the end
    assert log.eval_epsilon == (0.05 if agent in ("dqn", "drq") else 0.001)
    assert preset_for("atari/pong", agent)["learner"]["batch_size"] == 32
    assert preset_for("atari/pong", agent)["replay"]["capacity_steps"] >= config.steps


def test_periods_are_in_updates_although_papers_count_steps_or_frames():
    periods = {"dqn": 10_000, "rainbow": 8000, "der": 2000, "otrainbow": 500}  # steps
    for agent, steps in periods.items():
        config, _ = config_of(agent, "atari")
        assert config.learner.target_every_updates == steps * config.updates_per_step


def test_bbf_resets_three_times():
    config, _ = config_of("bbf", "atari")
    interval = config.reset.every_updates / config.updates_per_step
    due = [config.warmup_steps + i * interval for i in range(1, 5)]
    last = config.steps - config.reset.last_steps
    assert [step for step in due if step <= last] == [22_000, 42_000, 62_000]
    c = config.learner
    assert (c.n_step, c.n_step_end, c.discount, c.discount_end, c.act_with) == (10, 3, 0.97, 0.997, "target")
    assert (c.encoder.stack, c.encoder.rescale, c.weight_decay, c.noisy_sigma) == ("impala", True, 0.1, 0)
    assert config.replay.importance_range == (0.5, 0.5)
    assert preset_for("atari/pong", "bbf")["learner"]["encoder"]["width"] == 4


def tiny_run(agent, kind):
    """An environment and the values of an agent with which a run takes a fraction of a second."""
    values = preset_for(ENVS[kind], agent)
    env = TINY_MAZE
    if kind == "dmc":
        env = make_continuous if agent == "sac" else f"{TINY_MAZE}&continuous=true"
    tiny = {
        "env": {"num_envs": 2, "frame_stack": 2 if agent != "sac" else 1},
        "warmup_steps": 4,
        "updates_per_step": 0.5,
        "learner": {"batch_size": 4, "hidden_dim": 8, "encoder": {"width": 0.05}},
        "replay": {"capacity_steps": 16},  # smaller than the run: it wraps
        "augment": {"shift_pixels": 1},
        "log": dict.fromkeys(("checkpoint_every_steps", "eval_every_steps"), 10),
        "device": "cpu",
    }
    more = {"log": {"tensorboard": False, "log_every_steps": 5, "eval_episodes": 2}}
    if values.get("augment", {}).get("crop_size"):
        more["augment"] = {"crop_size": 18}
    if "reset" in values:
        more["reset"] = {"every_updates": 3, "last_steps": 4}  # one before the checkpoint, one after it
    return env, merge({k: v for k, v in values.items() if k != "env"}, tiny, more)


# They differ from others in values alone, which the tests of their configs compare.
VARIANTS = ("der", "der-dopamine", "drq-eps", "otrainbow", "sr-spr")


@pytest.mark.parametrize(
    ("agent", "kind"),
    [
        *((name, "maze") for name in DISCRETE if name not in VARIANTS),
        *(pytest.param(name, "maze", marks=pytest.mark.slow) for name in VARIANTS),
        *((name, "dmc") for name in CONTINUOUS),
    ],
)
def test_every_agent_trains_resumes_bit_for_bit_and_evaluates(tmp_path, agent, kind):
    """From the checkpoint in the middle: β and the last reset depend on the length of the run."""
    env, config = tiny_run(agent, kind)
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    trained = voidrl.train(env, steps=20, seed=3, out=straight, config=config)
    copy_as_of(straight, resumed, 19)
    factory = None if isinstance(env, str) else env
    voidrl.resume(resumed, env=factory)
    assert_same_run(straight, resumed, steps=20)
    assert newest(straight)[1]["updates"] == 8
    assert len(voidrl.evaluate(trained, factory, episodes=2).returns) == 2


def test_families_of_environments():
    envs = ["atari/pong", "dmc/walker", "voidrl/PixelMaze-v0?goal=near", "CartPole-v1", make_continuous]
    assert [family(env) for env in envs] == ["atari", "dmc", "maze", "any", "any"]
    assert family("voidrl/PixelMaze-v0?continuous=true") == "any"
    assert set(FAMILIES) == set(ENVS)
    assert all(
        {*agent.families} <= {*FAMILIES} and agent.families and agent.about for agent in AGENTS.values()
    )


def test_an_agent_that_does_not_fit_is_refused_with_those_that_do():
    with pytest.raises(ConfigError) as refused:
        layers_for("dmc/walker_walk", "train", "rainbow")
    assert str(refused.value).startswith(
        "preset 'rainbow' cannot be used in environment 'dmc/walker_walk': it is made for atari/… or "
        "PixelMaze or Gymnasium environments, and agents for dmc/… are drq, curl, sac, rad, drqv2"
    )
    with pytest.raises(ConfigError, match="unknown preset 'bff'; did you mean 'bbf'"):
        layers_for("atari/pong", "train", "bff")
