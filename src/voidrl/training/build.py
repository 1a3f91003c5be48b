"""Builds the config of a run: the environment's spec first, then a config with nothing left to decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
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
    merge,
    registry,
    require,
    to_json,
    update,
)
from voidrl.envs.ids import ATARI, DMC
from voidrl.envs.make import EnvFactory, probe_env
from voidrl.errors import ConfigError, by_caller
from voidrl.nets.augment import network_spec, with_shift
from voidrl.nets.encoder import stack_for
from voidrl.presets.presets import NO_PRESET, default_preset
from voidrl.system.device import pick_device
from voidrl.system.units import human_count, human_seconds
from voidrl.training.layers import ConfigLayer, Env, config_sources
from voidrl.types import EnvSpec

MLP_HIDDEN = 256  # width of the hidden layer in the encoder that `auto` gives to vectors
CPU_PRESET = "cpu"
CORE_GFLOP_PER_SECOND = 50.0  # of one core of a laptop, in an update
HOPELESS_SECONDS, TYPICAL_STEPS = 3600.0, 100_000


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
    config, factory = env_for(env, update(EnvConfig(), values, "env."))
    spec, config = probe_env(config, factory)
    return Probed(spec, config, factory)


def config_for(probed: Probed, layers: Sequence[ConfigLayer]) -> Config:
    """The config of a run in an environment that has been probed."""
    return build_config(probed.spec, [*(layer.values for layer in layers), {"env": to_json(probed.env)}])


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
    steps = max(config.steps, TYPICAL_STEPS)
    keep = by_caller(f"preset={name or NO_PRESET!r}", f"--preset {name or NO_PRESET}")
    return (
        f"preset {CPU_PRESET}, since {human_count(steps)} steps with "
        f"{'the defaults' if name is None else f'preset {name}'} would take about "
        f"{human_seconds(per_step * steps)} on a CPU ({keep} keeps them)"
    )


def config_from_json(data: Any) -> Config:
    """The inverse of `to_json`."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"the config of a run is a {type(data).__name__}: expected a mapping")
    return update(Config(), data)


def env_for(env: Env, base: EnvConfig) -> tuple[EnvConfig, EnvFactory | None]:
    """The config of an id or a factory, with the other values of `base`; and the factory, if it is one."""
    if base.id.startswith(DMC) and not (isinstance(env, str) and env.startswith(DMC)):
        base = dataclasses.replace(base, dmc=DMControlConfig())  # options that no other environment has
    if base.id.startswith(ATARI) and not (isinstance(env, str) and env.startswith(ATARI)):
        base = dataclasses.replace(base, atari=AtariConfig())
    if isinstance(env, str):
        return dataclasses.replace(base, id=env), None
    if not callable(env) or isinstance(env, gym.Env):
        raise ConfigError(
            f"environment {env!r} cannot be used: expected an id or a function that returns a gymnasium.Env"
        )
    # The () marks a callable object, such as a partial: importing its class would give something else.
    name = getattr(env, "__qualname__", f"{type(env).__qualname__}()")
    return dataclasses.replace(base, id=f"{env.__module__}:{name}"), env
