"""Builds the config of a run: values in layers, then a config with nothing left to decide.

Later layers win: defaults < preset < recipe < command. `config_sources` names the layer of each value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium as gym

from voidrl import dist
from voidrl.agent.combinations import Combination, check_ranks
from voidrl.agent.cost import update_gflop
from voidrl.config import (
    PIECES,
    AtariConfig,
    Config,
    DMControlConfig,
    EnvConfig,
    LearnerConfig,
    flat,
    merge,
    registry,
    require,
    to_json,
    update,
)
from voidrl.config.schema import BonusConfig
from voidrl.envs.ids import ATARI, DMC
from voidrl.envs.make import EnvFactory, probe_env
from voidrl.envs.suites.dmcontrol import find_dmc_task
from voidrl.errors import ConfigError, by_caller
from voidrl.methods.base import Method
from voidrl.nets.augment import network_spec, with_shift
from voidrl.nets.encoder import stack_for
from voidrl.presets.presets import (
    AGENTS,
    NO_PRESET,
    bonus_recipe,
    default_preset,
    preset_for,
    recipe,
    without_representation,
)
from voidrl.system.device import pick_device
from voidrl.system.units import human_count
from voidrl.types import EnvSpec

Env = str | EnvFactory
"""An environment: an id, or a function that makes one."""
Overrides = Mapping[str, Any] | Config
"""Changes to the config, nested or dotted; or a whole config."""
BONUS_COEFFICIENT = 0.05  # of a bonus whose method's recipe says nothing else
AS_FINETUNED = {  # fields of `finetune`, and the fields that they set in an agent trained from scratch
    "steps": "steps",
    "updates_per_step": "updates_per_step",
    "warmup_steps": "warmup_steps",
    "learning_rate": "learner.learning_rate",
}
MLP_HIDDEN = 256  # width of the hidden layer in the encoder that `auto` gives to vectors
CPU_PRESET = "cpu"
CORE_GFLOP_PER_SECOND = 50.0  # of one core of a laptop, in an update
HOPELESS_SECONDS, TYPICAL_STEPS = 3600.0, 100_000


# Layers


class ConfigLayer(NamedTuple):
    """Values of a config, nested, and where they come from."""

    source: str
    values: Mapping[str, Any]


def layers_for(
    env: Env,
    phase: str,
    preset: str | None = None,
    config: Overrides | None = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    shared: Mapping[str, Any] | None = None,
    bonus: str | type[Method] | None = None,
) -> list[ConfigLayer]:
    """The layers of a run that starts from scratch: preset, recipe and command.

    Naming a piece replaces only that piece. Another representation keeps the preset's shape of f, and drops
    the recipe's representation with its shared stack. Another learner keeps the preset's values of fields
    that all learners have. Training from scratch takes the values of fine-tuning, for comparison.

    Args:
        env: The environment.
        phase: `pretrain` or `train`.
        preset: By default the environment's own.
        config: Changes, or a whole `Config`, which leaves out preset and recipe.
        arguments: More changes, which win over `config`.
        shared: Changes that all runs of an experiment have in common; in `train`, the values for fine-tuning
            win over them.
        bonus: In `train`, the method whose reward is added to the task's, with its recipe.
    """
    arguments = {**(arguments or {}), "phase": phase}
    if bonus is not None:
        name = registry.name_of("method", registry.find("method", bonus))
        other = piece_name("method", merge(as_changes(config), arguments))
        if other not in (None, name):
            raise ConfigError(
                f"bonus = {name!r} cannot be used with method = {other!r}: both name the method whose reward "
                f"is added to the task's; leave one of them out"
            )
        arguments = merge(arguments, {"method": bonus})
    if isinstance(config, Config):
        if preset is not None:
            raise ConfigError(
                f"preset = {preset!r} cannot be used with a whole voidrl.Config, which has a value for every "
                f"field: pass one of the two, or the changes alone as a mapping"
            )
        values = to_json(config)
        if bonus is not None and not config.bonus.coefficient:
            values["bonus"]["coefficient"] = BONUS_COEFFICIENT
        return [ConfigLayer("config", values), ConfigLayer("command", arguments)]
    preset = None if preset == NO_PRESET else preset or default_preset(env)
    common = merge(shared or {})
    command = ConfigLayer("command", merge(as_changes(config), arguments))
    named = merge(common, command.values)
    method = piece_name("method", named) or Config().method.name
    own = registry.find("method", method).learner
    values, chosen = _preset_and_recipe(env, preset, method, own, named)
    if phase == "train" and "log" in values:  # snapshots are taken of pre-training
        values = {**values, "log": {k: v for k, v in values["log"].items() if k != "snapshot_steps"}}
    below = [ConfigLayer(f"preset {preset}", values), ConfigLayer(f"recipe {method}", chosen)]
    if bonus is not None:
        below.append(ConfigLayer(f"bonus {method}", _bonus_values(method, preset, values)))
    below.append(ConfigLayer("experiment", common))
    scratch = _as_finetuned([*below, command]) if phase == "train" else []
    return [*below, *scratch, command]


def _preset_and_recipe(
    env: Env, preset: str | None, method: str, own_learner: str, named: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A preset's values and the method's recipe for it, without values of pieces that were replaced."""
    learner, representation = (piece_name(kind, named) for kind in ("learner", "representation"))
    if learner in (None, "auto"):
        learner = own_learner or learner
    task = find_dmc_task(env) if isinstance(env, str) else None
    values = preset_for(env, preset)
    chosen = recipe(method, preset, representation, None if task is None else task.domain)
    given = piece_name("learner", values)
    if learner not in (None, own_learner or given):
        chosen = _with_common_fields(chosen)
    if learner not in (None, given):
        values = _with_common_fields(values)
    if representation not in (None, piece_name("representation", chosen)):
        chosen = without_representation(chosen)
    return values, chosen


def _bonus_values(method: str, preset: str | None, below: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a method as a bonus.

    An agent that uses the learner's encoder as f keeps it, unless the method prescribes its own f.
    """
    values = merge({"bonus.coefficient": BONUS_COEFFICIENT}, bonus_recipe(method))
    cls = registry.find("method", method)
    own = cls.image_representation == "fixed" or "default_representation" in vars(cls)
    if own and preset in AGENTS and piece_name("representation", below) == "learner":
        values["representation"] = {"name": "auto"}
    return values


def _with_common_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without learner fields that only some learners have."""
    common = {f.name for f in dataclasses.fields(LearnerConfig)} - {"name"}
    return {**values, "learner": {k: v for k, v in values.get("learner", {}).items() if k in common}}


def finetune_layers(
    pretrained: Config, config: Overrides | None, arguments: Mapping[str, Any] | None = None
) -> list[ConfigLayer]:
    """The layers of a run that adapts a pre-trained agent; another learner keeps only its encoder."""
    command = merge(as_changes(config), {**(arguments or {}), "phase": "finetune"})
    if "warmup_steps" in command and not isinstance(config, Config):
        raise ConfigError(
            f"warmup_steps = {command['warmup_steps']} cannot be used while fine-tuning: it is the random "
            f"warm-up of pre-training; use finetune.warmup_steps"
        )
    before = to_json(task_config(pretrained))
    own, other = pretrained.learner.name, piece_name("learner", command)
    if other == "auto":
        command = merge(command, {"learner": {"name": own}})
    elif other not in (None, own):
        heads = command.get("finetune", {}).get("heads", "random")
        if heads != "random":
            raise ConfigError(
                f"finetune.heads = {heads!r} cannot be used with learner {other!r}: the agent was "
                f"pre-trained by {own!r}, whose heads it does not have; use 'random', which keeps the encoder"
            )
        before["learner"] = {"encoder": before["learner"]["encoder"]}
        before["finetune"]["heads"] = "random"
    return [ConfigLayer("pre-trained run", before), ConfigLayer("command", command)]


def as_changes(config: Overrides | None) -> dict[str, Any]:
    """Changes to a config as a mapping."""
    if isinstance(config, Config):
        return dict(to_json(config))
    require(isinstance(config, Mapping | None), "config", config, "a mapping of values or a voidrl.Config")
    return dict(config or {})


def task_config(pretrained: Config) -> Config:
    """The config that fine-tunes an agent of this config, before any changes."""
    tuning, learner = pretrained.finetune, pretrained.learner
    rate = tuning.learning_rate or learner.learning_rate
    return dataclasses.replace(
        pretrained,
        phase="finetune",
        steps=tuning.steps or pretrained.steps or Config.steps,  # an untrained agent has 0
        updates_per_step=tuning.updates_per_step or pretrained.updates_per_step,
        learner=dataclasses.replace(learner, learning_rate=rate),
        # None, so that changes to either field count.
        finetune=dataclasses.replace(tuning, updates_per_step=None, learning_rate=None),
        # An agent that was trained on a task had its bonus for that task.
        bonus=BonusConfig() if pretrained.effective.has_bonus else pretrained.bonus,
        replay=dataclasses.replace(pretrained.replay, data=None),
        log=dataclasses.replace(pretrained.log, snapshot_steps=()),
    )


def _as_finetuned(layers: Sequence[ConfigLayer]) -> Iterator[ConfigLayer]:
    """The values of `finetune` for an agent that is trained from scratch."""
    tuning = merge(*(layer.values for layer in layers)).get("finetune", {})
    for name, field in AS_FINETUNED.items():
        if tuning.get(name) is not None:
            source = [layer.source for layer in layers if name in layer.values.get("finetune", {})][-1]
            yield ConfigLayer(source, merge({field: tuning[name]}))


def piece_name(kind: str, values: Mapping[str, Any]) -> str | None:
    """The name of a piece in nested values; None if they name none."""
    piece = values.get(kind)
    name = piece.get("name") if isinstance(piece, Mapping) else None
    if isinstance(name, type):
        return registry.name_of(kind, registry.find(kind, name))
    return name if isinstance(name, str) else None


def config_sources(config: Config, layers: Sequence[ConfigLayer]) -> dict[str, str]:
    """The source of each field's value.

    It is a layer's source, `default`, or, where `auto` was resolved, `environment` or `method NAME`.
    """
    defaults = flat(to_json(update(Config(), {kind: getattr(config, kind).name for kind in PIECES})))
    method = f"method {config.method.name}"
    chosen = method if registry.find("method", config.method.name).learner else "environment"
    automatic = {"learner.name": chosen, "representation.name": method}
    given_by = [(layer.source, flat(layer.values)) for layer in layers]
    found = {}
    for field, value in flat(to_json(config)).items():
        source, given = automatic.get(field, "default"), defaults[field]
        for layer, values in given_by:
            if field in values and not (field in automatic and values[field] == "auto"):
                source, given = layer, to_json(values[field])
        resolved = given != value and not isinstance(given, type)  # a class has become its name
        found[field] = ("command" if field == "env.id" else "environment") if resolved else source
    return found


# The config


class Probed(NamedTuple):
    """An environment's spec and settings, found before a run is built."""

    spec: EnvSpec
    env: EnvConfig
    """With the environment's defaults filled in."""
    factory: EnvFactory | None


def probe(env: Env, layers: Sequence[ConfigLayer]) -> Probed:
    """Look at the environment that the layers describe."""
    merged = merge(*(layer.values for layer in layers))
    values = merged.get("env", {})
    require(isinstance(values, Mapping), "env", values, "a mapping; the id is an argument of its own")
    with _naming_preset(layers):
        config, factory = env_for(env, update(EnvConfig(), values, "env."))
        spec, config = probe_env(config, factory)
    return Probed(spec, config, factory)


def config_for(probed: Probed, layers: Sequence[ConfigLayer]) -> Config:
    """The config of a run in an environment that has been probed."""
    with _naming_preset(layers):
        return build_config(probed.spec, [*(layer.values for layer in layers), {"env": to_json(probed.env)}])


@contextmanager
def _naming_preset(layers: Sequence[ConfigLayer]) -> Iterator[None]:
    """Add to an error about a field which preset sets it, as the user may have named only that."""
    try:
        yield
    except ConfigError as error:
        name = str(error).partition(" = ")[0]
        source = next((each.source for each in reversed(layers) if name in flat(merge(each.values))), "")
        if source.startswith("preset "):
            error.args = (f"{error} ({source} sets it)",)
        raise


def build_config(spec: EnvSpec, layers: Sequence[Mapping[str, Any]]) -> Config:
    """Merge defaults and layers; environment and method decide the values that are `auto`."""
    merged = merge(*layers)
    config = update(Config(), merged | name_pieces(spec, merged))
    seen = network_spec(spec, config.augment)
    config = dataclasses.replace(config, augment=with_shift(config.augment, spec.frame_shape[1:]))
    stack = stack_for(seen.obs_shape) if spec.pixels else "mlp"
    light = "paper" if stack == "nature" else stack  # for a CPU
    if stack == "nature" and not spec.discrete:
        stack = "drq"
    for kind in ("representation", "learner"):
        encoder = getattr(config, kind).encoder
        if spec.pixels and encoder.stack == "mlp":
            raise ConfigError(
                f"{kind}.encoder.stack = 'mlp' cannot be used with {spec.describe()}: expected convolutions; "
                f"DMControl from pixels has the presets urlb-pixels, dmc-paper and dmc-fast"
            )
        if encoder.stack in ("auto", "light"):
            chosen = light if encoder.stack == "light" else stack
            # LayerNorm straight on a linear map would forget the length of a vector.
            hidden = encoder.hidden_dim or (MLP_HIDDEN if chosen == "mlp" else 0)
            config = update(config, {f"{kind}.encoder": {"stack": chosen, "hidden_dim": hidden}})
    return config


def name_pieces(spec: EnvSpec, merged: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The given values of each piece, with `auto` resolved to a name."""
    pieces = {}
    for kind in PIECES:
        given = merged.get(kind, {})
        require(isinstance(given, Mapping), kind, given, "a name, a class or a mapping of values")
        pieces[kind] = {"name": getattr(Config(), kind).name, **given}
    method = registry.find("method", pieces["method"]["name"])
    if pieces["learner"]["name"] == "auto":
        pieces["learner"]["name"] = method.learner or ("dqn" if spec.discrete else "sac")
    if pieces["representation"]["name"] == "auto":
        pieces["representation"]["name"] = method.default_representation(spec)
    return pieces


def require_fitting(probed: Probed, config: Config, layers: Sequence[ConfigLayer] = ()) -> None:
    """Refuse pieces that cannot work together, or on so many ranks; builds no network."""
    try:
        Combination(probed.spec, config).check()
    except ConfigError as error:
        kind, _, preset = config_sources(config, layers)["learner.name"].partition(" ")
        if kind != "preset":
            raise
        raise ConfigError(f"{error} (preset {preset!r} sets learner {config.learner.name!r})") from None
    check_ranks(config, dist.expected_size())


def cpu_preset_note(env: Env, spec: EnvSpec, config: Config) -> str:
    """A sentence if preset `cpu` should replace the defaults; "" where they are affordable.

    On a CPU they are not if the updates of 100K steps would take one core more than an hour.
    """
    per_step = config.updates_per_step * update_gflop(spec, config) / CORE_GFLOP_PER_SECOND
    if pick_device(config.device).type != "cpu" or per_step * TYPICAL_STEPS <= HOPELESS_SECONDS:
        return ""
    name = default_preset(env)
    keep = by_caller(f"preset={name or NO_PRESET!r}", f"--preset {name or NO_PRESET}")
    return (
        f"preset {CPU_PRESET}, since {'the defaults' if name is None else f'preset {name}'} would run at "
        f"about {human_count(1 / per_step)} steps/s on a CPU ({keep} keeps them)"
    )


def config_from_json(data: Any) -> Config:
    """The inverse of `to_json`."""
    require(isinstance(data, Mapping), "the config of a run", data, "a mapping")
    return update(Config(), data)


def env_for(env: Env, base: EnvConfig) -> tuple[EnvConfig, EnvFactory | None]:
    """The config of an id or a factory, with the other values of `base`; and the factory, if it is one."""
    for prefix, options in ((DMC, {"dmc": DMControlConfig()}), (ATARI, {"atari": AtariConfig()})):
        if base.id.startswith(prefix) and not (isinstance(env, str) and env.startswith(prefix)):
            base = dataclasses.replace(base, **options)  # no other environment has them
    if isinstance(env, str):
        return dataclasses.replace(base, id=env), None
    if not callable(env) or isinstance(env, gym.Env):
        raise ConfigError(
            f"environment {env!r} cannot be used: expected an id or a function that returns a gymnasium.Env"
        )
    # The () marks a callable object, such as a partial: importing its class would give something else.
    name = getattr(env, "__qualname__", f"{type(env).__qualname__}()")
    return dataclasses.replace(base, id=f"{env.__module__}:{name}"), env
