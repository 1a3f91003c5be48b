"""Agents by name: each is built, trains, resumes and evaluates; their traps; what they are refused for."""

from fractions import Fraction

import pytest
import torch
from helpers import CPU, fill_replay, moved, parameters_of, snapshot
from tiny_runs import assert_same_run, copy_as_of, make_continuous, newest

import voidrl
from voidrl.agent import Agent
from voidrl.config import merge
from voidrl.errors import ConfigError
from voidrl.presets.presets import AGENTS, FAMILIES, agents_for, family, protocol_for
from voidrl.training import build
from voidrl.training.layers import layers_for
from voidrl.types import EnvSpec

BOX = {"action_low": (-1.0, -1.0), "action_high": (1.0, 1.0), "action_shape": (2,)}
ENVS = {"atari": "atari/pong", "dmc": "dmc/cheetah_run", "maze": "voidrl/PixelMaze-v0", "any": "Some-v0"}
TINY_MAZE = "voidrl/PixelMaze-v0?size=5&image_size=20&goal=far&slip=0.2&max_episode_steps=9"
DISCRETE = agents_for("atari")
CONTINUOUS = agents_for("dmc")
DOMAINS = ["cartpole_swingup", "cheetah_run", "reacher_easy", "ball_in_cup_catch", "walker_walk"]
DOMAINS += ["finger_spin"]
SMALL = {  # for all agents: the shapes of their networks stay
    "learner": {"hidden_dim": 8, "encoder.width": 0.05, "batch_size": 8},
    "replay": {"capacity_steps": 60},
    "device": "cpu",
}


def config_of(agent, kind, phase="train", shape=None, **changes):
    """The config of a command with an agent in a family of environments, and the spec it is for."""
    values = protocol_for(ENVS[kind], agent)
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
    assert protocol_for("atari/pong", agent)["learner"]["batch_size"] == 32
    assert protocol_for("atari/pong", agent)["replay"]["capacity_steps"] >= config.steps


@pytest.mark.parametrize(
    ("agent", "table"),
    {
        "dqn": {0: 1.0, 100_000: 0.64, 250_000: 0.1},
        "rainbow": {0: 0.0, 100_000: 0.0},
        "der": {0: 0.0, 100_000: 0.0},
        "der-dopamine": {0: 0.01, 1600: 0.01, 100_000: 0.01},
        "otrainbow": {0: 1.0, 20_000: 1.0, 45_000: 0.505, 70_000: 0.01, 100_000: 0.01},
        "drq": {0: 1.0, 1250: 0.55, 2500: 0.1, 100_000: 0.1},
        "drq-eps": {0: 1.0, 1600: 1.0, 4100: 0.505, 6600: 0.01, 100_000: 0.01},
        "spr": {0: 1.0, 2001: 0.0, 100_000: 0.0},
        "bbf": {0: 1.0, 2000: 1.0, 4001: 0.0, 100_000: 0.0},
    }.items(),
)
def test_probability_of_a_random_action(agent, table):
    config, spec = config_of(agent, "atari")
    learner = Agent(spec, config, CPU).learner
    found = {}
    for steps in table:
        learner.set_progress(steps)
        found[steps] = learner.epsilon.item()
    assert found == pytest.approx(table, abs=1e-6)


@pytest.mark.parametrize("agent", ["drq", "drq-eps", "spr"])
def test_agents_without_a_target_network_copy_it_after_every_update(agent):
    config, spec = config_of(agent, "maze", learner__target_tau=1.0)
    learner = protocol_for("atari/pong", agent)["learner"]
    assert (learner["target_tau"], learner["target_every_updates"]) == (1.0, 1)
    built, replay = Agent(spec, config, CPU), fill_replay(spec)
    learner = built.learner
    for update in range(2):
        before = snapshot(parameters_of(learner.encoder))
        built.update(replay, update)
        assert not moved(parameters_of(learner.encoder), parameters_of(learner.target_encoder))
        assert not moved(parameters_of(learner.critic), parameters_of(learner.target_critic))
        assert moved(before, parameters_of(learner.encoder))


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
    assert protocol_for("atari/pong", "bbf")["learner"]["encoder"]["width"] == 4


def test_curl_weighs_its_loss_less_in_four_games():
    weights = {
        game: protocol_for(f"atari/{game}", "curl")["representation"]["loss_weight"]
        for game in ("pong", "Boxing", "private_eye", "freeway", "assault", "adventure")
    }
    assert weights == {
        **dict.fromkeys(("pong", "Boxing", "private_eye", "freeway"), 0.01),
        **dict.fromkeys(("assault", "adventure"), 1.0),
    }
    config, _ = config_of("curl", "atari")
    assert not config.augment.learner
    assert (config.augment.inner_size, config.augment.shift_pixels, config.learner.n_step) == (80, 4, 20)


@pytest.mark.parametrize("agent", ["drq", "rad", "curl"])
def test_frames_of_dmcontrol(agent):
    """500k frames, and an evaluation at 100k, whatever the action repeat."""
    repeats = {}
    for task in DOMAINS:
        values = protocol_for(f"dmc/{task}", agent)
        repeats[task] = repeat = values["env"]["dmc"]["action_repeat"]
        assert values["steps"] * repeat == 500_000
        for frames in (100_000, 500_000):
            assert frames % repeat == 0
            assert frames // repeat % values["log"]["eval_every_steps"] == 0
    assert [*repeats.values()] == [8, 4, 4, 4, 2, 2]


def test_agents_of_dmcontrol():
    drq, rad, curl = (protocol_for("dmc/walker_walk", name) for name in ("drq", "rad", "curl"))
    assert {values["learner"]["name"] for values in (drq, rad, curl)} == {"sac"}
    assert (drq["learner"]["views"], drq["learner"]["batch_size"]) == (2, 512)
    assert (rad["augment"]["crop_size"], rad["env"]["dmc"]["image_size"]) == (84, 100)
    assert (curl["representation"]["name"], curl["replay"]["priority_exponent"]) == ("curl", 0)
    walk, run, cheetah = (
        protocol_for(f"dmc/{t}", "drqv2") for t in ("walker_walk", "walker_run", "cheetah_run")
    )
    learners = [values["learner"] for values in (walk, run, cheetah)]
    assert [each["n_step"] for each in learners] == [1, 1, 3]
    assert [each["stddev_decay_steps"] for each in learners] == [100_000, 500_000, 500_000]


def tiny_run(agent, kind):
    """An environment and the values of an agent with which a run takes a fraction of a second."""
    values = protocol_for(ENVS[kind], agent)
    env = (
        TINY_MAZE if kind != "dmc" else make_continuous if agent == "sac" else f"{TINY_MAZE}&continuous=true"
    )
    tiny = {
        "env": {"num_envs": 2, "frame_stack": 2 if agent != "sac" else 1},
        "warmup_steps": 4,
        "updates_per_step": 0.5,
        "learner": {"batch_size": 4, "hidden_dim": 8, "encoder": {"width": 0.05}},
        "replay": {"capacity_steps": 16},  # smaller than the run: it wraps
        "augment": {"shift_pixels": 1},
        "log": {
            "log_every_steps": 5,
            "checkpoint_every_steps": 10,
            "eval_every_steps": 10,
            "eval_episodes": 2,
        },
        "device": "cpu",
    }
    more = {"log": {"tensorboard": False}}
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
        *(
            pytest.param(name, "maze", marks=pytest.mark.slow if name in VARIANTS else ())
            for name in DISCRETE
        ),
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
        set(agent.families) <= set(FAMILIES) and agent.families and agent.about for agent in AGENTS.values()
    )


@pytest.mark.parametrize(
    ("env", "agent", "sentence"),
    [
        (
            "dmc/walker_walk",
            "rainbow",
            "preset 'rainbow' cannot be used in environment 'dmc/walker_walk': it is made for atari/…, "
            "PixelMaze or Gymnasium environments, and agents for dmc/… are drq, curl, sac, rad and drqv2",
        ),
        ("voidrl/PixelMaze-v0", "sac", "it is made for dmc/… or Gymnasium environments, and agents for Pix"),
        ("atari/pong", "bff", "unknown preset 'bff'; did you mean 'bbf'"),
    ],
)
def test_an_agent_that_does_not_fit_is_refused_with_those_that_do(env, agent, sentence):
    with pytest.raises(ConfigError) as refused:
        layers_for(env, "train", agent)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
