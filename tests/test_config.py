"""Configs: round trips, changes, wrong values, and the words that the command line is made from."""

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import voidrl
from voidrl.agent import Agent
from voidrl.config import (
    PIECES,
    AugmentConfig,
    Config,
    EncoderConfig,
    EnvConfig,
    FinetuneConfig,
    LearnerConfig,
    LogConfig,
    MethodConfig,
    ReplayConfig,
    RepresentationConfig,
    default_piece,
    merge,
    registry,
    to_json,
    update,
)
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.learners.ddpg import DDPG
from voidrl.learners.sac import SACConfig
from voidrl.methods.apt import APT
from voidrl.methods.base import Method
from voidrl.presets.presets import PROTOCOLS, find_preset, preset_values
from voidrl.training.build import build_config
from voidrl.types import EnvSpec

CPU = torch.device("cpu")
EVERY_PIECE = [(kind, name) for kind in PIECES for name in registry.names(kind)]


@dataclasses.dataclass(frozen=True)
class CountConfig(MethodConfig):
    """A method from outside the package."""

    sizes: tuple[int, ...] = (1, 2)
    """A tuple."""
    power: float | None = None
    """An optional number."""


class Count(Method):
    Config = CountConfig


def back_and_forth(config):
    return update(Config(), json.loads(json.dumps(to_json(config), allow_nan=False)))


# --- round trips ------------------------------------------------------------------------------------------


def test_the_defaults_survive_json():
    assert to_json(back_and_forth(Config())) == to_json(update(Config(), {"method": "apt"}))
    assert back_and_forth(Config()).learner == LearnerConfig("auto")


@pytest.mark.parametrize(("kind", "name"), EVERY_PIECE)
def test_every_piece_survives_json(kind, name):
    config = update(Config(), {"method": "apt", "steps": 77})
    config = update(config, {kind: {"name": name, "learning_rate": 0.123}})
    again = back_and_forth(config)
    assert again == config
    assert type(getattr(again, kind)) is registry.find(kind, name).Config
    assert getattr(again, kind).name == name


def test_tuples_and_none_survive_json():
    config = update(Config(), {"method": Count, "method.sizes": [3, 4, 5], "log.wandb_project": "p"})
    assert config.method.sizes == (3, 4, 5)
    assert back_and_forth(config) == config
    assert update(config, {"log.wandb_project": None, "method.power": 2}).log.wandb_project is None


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_preset_builds_an_agent(name):
    values = preset_values(name)
    discrete = registry.find("learner", values["learner"].get("name", "dqn")).actions == "discrete"
    env = update(EnvConfig(), values["env"])
    pixels = not name.startswith(("dmc", "urlb")) or env.dmc.observation == "pixels"
    actions = (6,) if discrete else (0, (-1.0, -1.0), (1.0, 1.0))
    spec = EnvSpec((3, 42, 42) if pixels else (24,), pixels, env.frame_stack, *actions)
    config = build_config(spec, [values])
    assert back_and_forth(config) == config
    require_values(config, values)
    agent = Agent(spec, config, CPU)
    obs = torch.zeros(2, *spec.obs_shape, dtype=torch.uint8 if pixels else torch.float32)
    action = agent.choose(obs, agent.new_skills(torch.zeros(2, dtype=torch.int64)), deterministic=False)
    assert action.shape == ((2,) if discrete else (2, 2))


def require_values(config, values):
    """A preset's values are there, whatever the defaults become."""
    for key, value in values.items():
        found = getattr(config, key)
        require_values(found, value) if isinstance(value, dict) else None
        given = tuple(value) if isinstance(value, list) else value
        if value == "light":  # the environment decides which
            continue
        assert isinstance(value, dict) or found == given, key


def test_an_unknown_preset_is_answered_with_a_near_one():
    with pytest.raises(UnknownNameError, match="did you mean 'atari-paper'"):
        find_preset("atari-papr")


# --- changes ----------------------------------------------------------------------------------------------


def test_changes_may_be_nested_or_dotted():
    for changes in (
        {"learner": {"name": "sac", "n_step": 3, "encoder": {"stack": "drq"}}, "env": {"num_envs": 4}},
        {"learner.name": "sac", "learner.n_step": 3, "learner.encoder.stack": "drq", "env.num_envs": 4},
        {"learner.n_step": 3, "learner": "sac", "learner.encoder": {"stack": "drq"}, "env.num_envs": 4},
        {"learner": {"name": "sac", "encoder.stack": "drq"}, "learner.n_step": 3, "env": {"num_envs": 4.0}},
    ):
        config = update(Config(), changes)
        assert config.learner == SACConfig("sac", n_step=3, encoder=EncoderConfig("drq", activation="relu"))
        assert config.env == EnvConfig(num_envs=4)
        assert config.replay == ReplayConfig()


def test_the_original_is_left_alone():
    config = Config()
    update(config, {"steps": 5, "learner.n_step": 2})
    assert config == Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 3


def test_later_layers_win_and_keep_the_rest():
    merged = merge({"a": {"b": 1, "c": 2}}, {"a.c": 3}, {"a": {"d.e": 4}})
    assert merged == {"a": {"b": 1, "c": 3, "d": {"e": 4}}}


def test_merging_changes_no_layer():
    layer = {"learner": {"name": "sac", "encoder": {"stack": "drq"}}}
    merge(layer, {"learner.encoder.stack": "paper", "learner.name": "ddpg"})
    assert layer == {"learner": {"name": "sac", "encoder": {"stack": "drq"}}}


@pytest.mark.parametrize("given", ["ddpg", DDPG, {"name": "ddpg"}, {"name": DDPG}, DDPG.Config("ddpg")])
def test_a_piece_is_given_by_name_class_mapping_or_config(given):
    config = update(Config(), {"learner": given})
    assert config.learner == DDPG.Config("ddpg")
    assert update(config, {"learner": given, "learner.n_step": 7}).learner.n_step == 7


def test_a_piece_of_ones_own():
    config = update(Config(), {"method": Count})
    assert config.method == CountConfig(f"{__name__}:Count")
    assert back_and_forth(config) == config


def test_naming_the_same_piece_again_keeps_its_values():
    config = update(Config(), {"method": "apt", "method.k": 7})
    for same in ("apt", APT, {"name": "apt"}, {"name": APT}):
        assert update(config, {"method": same}).method.k == 7
        assert merge({"method": {"name": "apt", "k": 7}}, {"method": same})["method"]["k"] == 7
        assert merge({"method.k": 7}, {"method": same})["method"]["k"] == 7


@pytest.mark.parametrize("other", ["random", {"name": "random"}, Count])
def test_naming_another_piece_drops_the_values_of_the_first(other):
    """`pretrain(env, "random", preset="atari-paper")`: the preset's k is no field of `random`."""
    config = update(
        Config(), merge(preset_values("atari-paper"), {"method": {"name": "apt", "k": 7}}, {"method": other})
    )
    assert config.method.name == registry.name_of("method", Count) if other is Count else "random"
    assert config.learner.n_step == 10
    assert not hasattr(config.method, "k")


def test_what_was_set_while_the_piece_was_automatic_is_kept():
    merged = merge({"learner": LearnerConfig("auto", n_step=4)}, {"learner": "ddpg"})
    assert update(Config(), merged).learner.n_step == 4


def test_a_whole_config_may_be_handed_over():
    config = update(
        Config(), {"env": EnvConfig("x", 3), "learner": SACConfig("sac", n_step=4), "env.frame_stack": 2}
    )
    assert config.env == EnvConfig("x", 3, frame_stack=2)
    assert config.learner.n_step == 4
    named = update(config, {"learner": SACConfig(n_step=6)})  # without a name: the piece that is there
    assert named.learner == dataclasses.replace(config.learner, n_step=6)


# --- wrong values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": "many"}, "steps = 'many' cannot be used: expected a whole number"),
        ({"steps": 1.5}, "steps = 1.5 cannot be used: expected a whole number"),
        ({"steps": True}, "steps = True cannot be used: expected a whole number"),
        ({"steps": float("nan")}, "steps = nan cannot be used: expected a whole number"),
        ({"steps": float("inf")}, "steps = inf cannot be used: expected a whole number"),
        ({"steps.more": 3}, "steps = {'more': 3} cannot be used: expected a whole number"),
        ({"share_encoder": 1}, "share_encoder = 1 cannot be used: expected 'nothing' or 'stack' or 'all'"),
        ({"learner.discount": "0.9"}, "learner.discount = '0.9' cannot be used: expected a number"),
        ({"learner.discount": True}, "learner.discount = True cannot be used: expected a number"),
        ({"log.wandb_project": 3}, "log.wandb_project = 3 cannot be used: expected str or None"),
        (
            {"finetune.heads": "new"},
            "finetune.heads = 'new' cannot be used: expected 'auto' or 'pretrained' or 'actor' or ",
        ),
        (
            {"intrinsic_scale": "d"},
            "intrinsic_scale = 'd' cannot be used: expected a number or 'horizon' or None",
        ),
        ({"env": 5}, "env = 5 cannot be used: expected EnvConfig"),
        ({"learner": 5}, "learner = 5 cannot be used: expected a name, a class or a mapping of values"),
        ({"learner": {"name": None}}, "learner = None cannot be used: expected a name, a class or a mapping"),
        (
            {"learner.encoder.stack": "vgg"},
            "learner.encoder.stack = 'vgg' cannot be used: expected auto, ",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_one_sentence(changes, sentence):
    with pytest.raises(ConfigError) as caught:
        update(update(Config(), {"method": "apt"}), changes)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "guess"),
    [
        ({"step": 3}, "unknown config field 'step'; did you mean 'steps'"),
        ({"learner.nstep": 3}, "unknown config field 'learner.nstep'; did you mean 'learner.n_step'"),
        ({"learner": {"encoder": {"stak": "drq"}}}, "did you mean 'learner.encoder.stack'"),
        ({"method": "atp"}, "unknown method 'atp'; did you mean 'apt'"),
        ({"method": "auto"}, "unknown method 'auto'"),
    ],
)
def test_an_unknown_name_is_answered_with_a_near_one(changes, guess):
    with pytest.raises(UnknownNameError) as caught:
        update(Config(), changes)
    assert guess in str(caught.value)


POSITIVE = {
    EnvConfig: ["num_envs", "frame_stack"],
    EncoderConfig: ["width"],
    MethodConfig: ["learning_rate"],
    RepresentationConfig: ["learning_rate"],
    LearnerConfig: ["batch_size", "n_step", "learning_rate", "adam_eps", "hidden_dim", "hidden_layers",
                    "discount", "target_tau", "target_every_updates"],
    ReplayConfig: ["capacity_steps"],
    FinetuneConfig: ["learning_rate"],
    LogConfig: ["log_every_steps", "checkpoint_every_steps", "keep_last"],
    Config: ["updates_per_step"],
}  # fmt: skip
NOT_NEGATIVE = {
    EncoderConfig: ["feature_dim", "hidden_dim", "spectral_norm_iterations"],
    LearnerConfig: ["max_grad_norm"],
    AugmentConfig: ["shift_pixels", "intensity_scale"],
    FinetuneConfig: ["warmup_steps"],
    LogConfig: ["eval_every_steps", "eval_episodes", "probe_every_steps", "eval_epsilon"],
    Config: ["steps", "warmup_steps", "seed"],
}


@pytest.mark.parametrize(("cls", "name"), [(c, n) for c, ns in POSITIVE.items() for n in ns])
def test_values_that_must_be_above_zero(cls, name):
    for value in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match=rf"^{name} = {value} cannot be used: expected "):
            cls(**{name: value})


@pytest.mark.parametrize(
    ("field", "most", "too_much"),
    [
        ("env.num_envs", 8192, 8193),
        ("updates_per_step", 1024, 1024.5),
        ("finetune.updates_per_step", 1024, 1025),
        ("log.eval_episodes", 10_000, 10_001),
        ("log.snapshot_steps", range(1, 1001), range(1, 1002)),
    ],
)
def test_amounts_that_no_run_finishes_with(field, most, too_much):
    most, too_much = ([*value] if isinstance(value, range) else value for value in (most, too_much))
    update(Config(), {field: most})
    with pytest.raises(ConfigError, match=rf"^{field} = .* cannot be used: expected .*\d") as caught:
        update(Config(), {field: too_much})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("learner.hidden_layers", 101, "101"),  # dqn has another default for it
        ("learner.discount_end", 1.0, "1.0"),
        ("log.snapshot_steps", [100, 0], "0"),
        ("env.wrappers", ["m:Good", "TimeLimit"], "'TimeLimit'"),
    ],
)
def test_limits_hold_in_learners_unions_and_tuples(field, value, shown):
    config = update(Config(), {"learner": "dqn", "learner.discount_end": None})
    with pytest.raises(ConfigError, match=rf"^{field} = {shown} cannot be used: expected "):
        update(config, {field: value})


@pytest.mark.parametrize(("cls", "name"), [(c, n) for c, ns in NOT_NEGATIVE.items() for n in ns])
def test_values_that_may_be_zero(cls, name):
    cls(**{name: 0})
    with pytest.raises(ConfigError, match=f"^{name} = -1 cannot be used: expected "):
        cls(**{name: -1})


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (LearnerConfig, {"discount": 1.0}),
        (LearnerConfig, {"target_tau": 1.5}),
        (LogConfig, {"eval_epsilon": 1.5}),
        (Config, {"seed": 2**31}),
        (Config, {"updates_per_step": float("inf")}),
    ],
)
def test_values_that_are_too_large(cls, values):
    with pytest.raises(ConfigError):
        cls(**values)


# --- what the command line says ---------------------------------------------------------------------------


def config_classes():
    for path in sorted(Path(voidrl.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                yield pytest.param(node, id=f"{path.stem}.{node.name}")


@pytest.mark.parametrize("node", list(config_classes()))
def test_every_field_of_every_config_has_its_docstring(node):
    assert ast.get_docstring(node)
    assert any("dataclass" in ast.unparse(d) and "frozen=True" in ast.unparse(d) for d in node.decorator_list)
    for field, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
            words = below.value if isinstance(below, ast.Expr) else None
            written = isinstance(words, ast.Constant) and isinstance(words.value, str) and words.value.strip()
            assert written, f"{node.name}.{field.target.id} has no docstring under it"
            assert field.value is not None, f"{node.name}.{field.target.id} has no default"


def test_the_configs_are_found():
    names = {case.values[0].name for case in config_classes()}
    assert {
        "Config",
        "EncoderConfig",
        "APTConfig",
        "SimCLRConfig",
        "DQNConfig",
        "SACConfig",
        "DDPGConfig",
    } <= names


def test_every_piece_starts_with_its_own_name():
    for kind, name in EVERY_PIECE:
        piece: Any = default_piece(kind, name)
        assert piece.name == name
        assert type(piece) is registry.find(kind, name).Config
