"""Configs: round trips, changes, wrong values, and the words that the command line is made from."""

import ast
import dataclasses
import json
from pathlib import Path

import pytest
import torch

import voidrl
from voidrl.config import (
    PIECES,
    Config,
    EncoderConfig,
    EnvConfig,
    LearnerConfig,
    MethodConfig,
    ReplayConfig,
    flat,
    merge,
    registry,
    to_json,
    update,
)
from voidrl.errors import ConfigError
from voidrl.learners.ddpg import DDPG
from voidrl.learners.sac import SACConfig
from voidrl.methods.apt import APT
from voidrl.methods.base import Method
from voidrl.presets.presets import preset_values

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
    assert config.method == CountConfig(f"{__name__}:Count", sizes=(3, 4, 5))
    assert back_and_forth(config) == config
    assert update(config, {"log.wandb_project": None, "method.power": 2}).log.wandb_project is None


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


def test_later_layers_win_and_keep_the_rest():
    merged = merge({"a": {"b": 1, "c": 2}}, {"a.c": 3}, {"a": {"d.e": 4}})
    assert merged == {"a": {"b": 1, "c": 3, "d": {"e": 4}}}


@pytest.mark.parametrize("given", ["ddpg", DDPG, {"name": "ddpg"}, {"name": DDPG}, DDPG.Config("ddpg")])
def test_a_piece_is_given_by_name_class_mapping_or_config(given):
    config = update(Config(), {"learner": given})
    assert config.learner == DDPG.Config("ddpg")
    assert update(config, {"learner": given, "learner.n_step": 7}).learner.n_step == 7


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


# --- wrong values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("steps", "many", "'many' cannot be used: expected a whole number"),
        ("steps", 1.5, "1.5 cannot be used: expected a whole number"),
        ("steps", True, "True cannot be used: expected a whole number"),
        ("share_encoder", 1, "1 cannot be used: expected 'nothing' or 'stack' or 'all'"),
        ("learner.discount", "0.9", "'0.9' cannot be used: expected a number"),
        ("log.wandb_project", 3, "3 cannot be used: expected str or None"),
        ("finetune.heads", "new", "'new' cannot be used: expected 'auto' or 'pretrained' or 'actor' or "),
        ("learner", 5, "5 cannot be used: expected a name, a class or a mapping of values"),
        ("learner.encoder.stack", "vgg", "'vgg' cannot be used: expected auto, "),
        ("learner.hidden_layers", 101, "101 cannot be used: expected "),  # dqn has another default for it
        ("log.snapshot_steps", [100, 0], "0 cannot be used: expected "),
        ("env.id", "a\x1b[2Jb", r"'a\x1b[2Jb' cannot be used: expected text on one line"),
        ("env.wrappers", ["m:Good", "TimeLimit"], "'TimeLimit' cannot be used: expected 'module:Wrapper'"),
        ("log", {"eval_episodes": 0, "eval_every_steps": 10}, "0 cannot be used: expected 1 or more"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_one_sentence(field, value, shown):
    config = update(Config(), {"method": "apt", "learner": "dqn", "learner.discount_end": None})
    with pytest.raises(ConfigError) as caught:
        update(config, {field: value})
    field = "log.eval_episodes" if field == "log" else field
    assert str(caught.value).startswith(f"{field} = {shown}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "most", "too_much"),
    [
        ("env.num_envs", 8192, 8193),
        ("updates_per_step", 1024, 1024.5),
        ("learner.batch_size", 2**16, 10**9),
        ("learner.n_step", 1000, 10**9),
        ("seed", 2**31 - 1, 2**31),
    ],
)
def test_values_that_are_too_large(field, most, too_much):
    update(Config(), {field: most})
    with pytest.raises(ConfigError, match=rf"^{field} = .* cannot be used: expected .*\d") as caught:
        update(Config(), {field: too_much})
    assert len(str(caught.value)) < 500


def test_every_size_has_a_limit():
    """Only a duration may be a billion, a seed, and what is compared with memory when a run starts."""
    unlimited = ("steps", "_updates", "seed", "keep_last", "env.atari.max_frames", "env.atari.noop_max")
    configs = [Config(), *(registry.find(kind, name).Config(name) for kind, name in EVERY_PIECE)]
    for config in configs:
        for field, value in flat(to_json(config)).items():
            if type(value) is int and not field.endswith(unlimited):
                with pytest.raises(ConfigError, match=" = 1000000000 cannot be used"):
                    update(config, {field: 10**9})


# --- what the command line says ---------------------------------------------------------------------------


CONFIG_CLASSES = {
    f"{path.stem}.{node.name}": node
    for path in sorted(Path(voidrl.__file__).parent.rglob("*.py"))
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if isinstance(node, ast.ClassDef) and node.name.endswith("Config")
}


def test_every_field_of_every_config_has_its_docstring():
    names = {node.name for node in CONFIG_CLASSES.values()}
    assert {"Config", "EncoderConfig", "APTConfig", "SimCLRConfig", "SACConfig"} <= names
    for name, node in CONFIG_CLASSES.items():
        assert ast.get_docstring(node), name
        decorators = [ast.unparse(d) for d in node.decorator_list]
        assert any("dataclass" in d and "frozen=True" in d for d in decorators), name
        for field, below in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                words = below.value.value if isinstance(below, ast.Expr) else None
                assert isinstance(words, str), f"{name}.{field.target.id} has no docstring under it"
                assert words.strip(), f"{name}.{field.target.id} has an empty docstring under it"
                assert field.value is not None, f"{name}.{field.target.id} has no default"
