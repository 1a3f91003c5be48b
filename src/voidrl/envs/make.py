"""Creates N environments from an id or a factory. Does not import torch."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable
from contextlib import chdir, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from voidrl.config import EnvConfig
from voidrl.config.registry import import_environments, import_path, with_colon
from voidrl.envs.atari import make_atari
from voidrl.envs.dmc import make_dmc, probe_dmc, resolve
from voidrl.envs.failures import creating
from voidrl.envs.ids import ATARI, DMC, format_id, import_package, is_importable, package_of, parse_id
from voidrl.envs.parallel import ParallelVector
from voidrl.envs.single import CheckedEnv, Wrapper, load_wrapper
from voidrl.envs.spaces.frames import info_mask
from voidrl.envs.suites.atari import find_game
from voidrl.envs.suites.dmcontrol import NAMES
from voidrl.envs.vector import Envs
from voidrl.errors import ConfigError, EnvironmentFailedError, UnknownNameError, VoidrlError, by_caller
from voidrl.types import EnvSpec

GYM_ID = re.compile(r"-v\d+$|/")  # `module:Name-v0`: Gymnasium imports the module, which registers the name
PREPROCESSED = "ALE/"  # whose vectorized version has other observations and options than the single game
KNOWN_EVERYWHERE = ("gymnasium.", "voidrl.")  # how entry points begin that these packages register
EnvFactory = Callable[..., Any]
"""Creates one environment; with the backend `native`, all of them."""
Made = TypeVar("Made", gym.Env, VectorEnv)


def make_envs(
    config: EnvConfig,
    factory: EnvFactory | None = None,
    num_envs: int | None = None,
    *,
    evaluation: bool = False,
    pretraining: bool = False,
    render_height: int = 0,
    true_state: bool = False,
) -> Envs:
    """Create N environments from an id or a factory.

    Args:
        config: The environment and its options.
        factory: A function that creates one environment, used instead of `config.id`; with the backend
            `native`, one that creates all.
        num_envs: N, by default `config.num_envs`.
        evaluation: Whether it is for evaluation: Atari plays whole games and keeps the raw score.
        pretraining: Whether training has no task reward: Atari may then treat lost lives differently.
        render_height: Above 0, `Envs.render` returns pictures of environment 0, of this height if the world
            can be drawn at any size. Nothing else changes.
        true_state: Whether `Envs.true_state` is available. On Atari this emulates each game twice.
    """
    if num_envs is not None:  # within the limits of the field
        config = dataclasses.replace(config, num_envs=num_envs)
    n, renders = config.num_envs, render_height > 0
    family = next((f for f in (ATARI, DMC) if factory is None and config.id.startswith(f)), "")
    _require_fitting(config, family)
    how: dict[str, Any] = {"evaluation": evaluation, "true_state": true_state}
    if family == DMC:
        return make_dmc(config, n, render_height=render_height, **how)
    if family == ATARI:
        return make_atari(config, n, pretraining=pretraining, render=renders, **how)
    envs = _make_gym(config, factory, n, renders, true_state)
    if renders and getattr(envs.vector, "render_mode", None) != "rgb_array" and not envs.spec.pixels:
        envs.close()
        raise ConfigError(
            f"environment {envs.name!r} cannot be shown: it has no render mode 'rgb_array' and its "
            f"observations are not images; add a render() and metadata = {{'render_modes': ['rgb_array']}}"
        )
    return envs


def _make_gym(config: EnvConfig, factory: EnvFactory | None, n: int, renders: bool, true_state: bool) -> Envs:
    """N environments of Gymnasium."""
    name = config.id
    native: Callable[..., Any] | None = None  # creates all of them at once
    if factory is None:
        name, options = parse_id(name)
        if ":" in name and not GYM_ID.search(name):
            factory = partial(_imported(name), **options)
        else:
            registered = _find(name)
            name = registered.id
            factory = partial(gym.make, name, **options)
            if registered.vector_entry_point is not None:
                native = partial(gym.make_vec, name, n, vectorization_mode="vector_entry_point", **options)
    if config.backend == "native" and native is None and _takes(factory, "num_envs"):
        native = partial(factory, num_envs=n)
    wrappers = [load_wrapper(text) for text in config.wrappers]
    if config.backend == "native" and (native is None or wrappers):
        why = f"{name!r} has no vectorized version"
        if wrappers:
            why = f"env.wrappers = {[*config.wrappers]} wrap single environments"
        raise ConfigError(f"env.backend = 'native' cannot be used: {why}; use sync or async")
    if config.backend in ("sync", "async") or wrappers:
        native = None
    if config.backend == "auto" and name.startswith(PREPROCESSED):
        native = None
    with creating(config.id):
        if native is not None:
            vector = _with_render_mode(native(), native) if renders else native()
            if not isinstance(vector, VectorEnv) or vector.num_envs != n:
                what = type(vector).__name__
                if hasattr(vector, "num_envs"):
                    what = f"{vector.num_envs} environments"
                raise ConfigError(
                    f"the factory of environment {config.id!r} returned {what} for num_envs={n}: expected a "
                    f"gymnasium.vector.VectorEnv of as many, as env.backend = 'native' asks for"
                )
            reading = None
        elif config.backend == "async":
            make = partial(_make_checked, factory, config, wrappers, renders)
            vector = ParallelVector(make, n, config.id, config.timeout_s)
            reading = vector.reading
        else:
            makers = [partial(_make_checked, factory, config, wrappers, renders, i) for i in range(n)]
            vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
            reading = vector.envs[0].reading  # type: ignore[attr-defined]
    return Envs(vector, config, true_state=true_state, reading=reading)


def _make_checked(
    factory: EnvFactory, config: EnvConfig, wrappers: list[Wrapper], renders: bool, number: int
) -> gym.Env:
    with creating(config.id, number):
        env = factory()
        if not isinstance(env, gym.Env):
            vector = "; one that returns a vector environment takes num_envs, with env.backend = 'native'"
            raise ConfigError(
                f"the factory of environment {config.id!r} returned {type(env).__name__}: expected a "
                f"gymnasium.Env{vector if isinstance(env, VectorEnv) else ''}"
            )
        env = _with_render_mode(env, factory) if renders else env
        for wrap in wrappers:
            env = wrap(env)
        return CheckedEnv(env, config, number)


def _imported(name: str) -> Callable[..., Any]:
    """The function `module:function`."""
    try:
        with creating(name):
            found = import_path("environment", name)
    except ConfigError as error:
        if is_importable(name):
            raise
        raise ConfigError(
            f"environment {name!r} is a function that cannot be imported from here: "
            + by_caller("pass it as env=…", "name one that can, such as --env my_script:make_env")
        ) from error
    if not callable(found):
        raise ConfigError(
            f"environment {name!r} cannot be used: expected a function that returns a gymnasium.Env"
        )
    return found


def _require_fitting(config: EnvConfig, family: str) -> None:
    """Refuse options that an environment of this family does not have."""
    refused: list[tuple[str, Any, str]] = []
    if family:
        whole = "[], since voidrl steps all its copies at once"
        entries = {"keys": [*config.keys], "wrappers": [*config.wrappers]}
        refused += [(key, value, whole) for key, value in entries.items() if value]
        if config.action_masks not in ("auto", "none"):
            refused.append(("action_masks", config.action_masks, "'none', since it allows all actions"))
    elif config.count_states:
        counted = f"{ATARI}… or {DMC}…, whose states can be counted"
        refused.append(("count_states", True, f"{counted}, or env.count_states = False"))
    for group, own in (("atari", ATARI), ("dmc", DMC)):
        options = getattr(config, group)
        refused += [
            (f"{group}.{field.name}", getattr(options, field.name), f"{own}…, since no others have it")
            for field in dataclasses.fields(options)
            if family != own and getattr(options, field.name) != field.default
        ]
    for name, value, expected in refused:
        raise ConfigError(
            f"env.{name} = {value!r} cannot be used with environment {config.id!r}: expected {expected}"
        )


def _with_render_mode(made: Made, make: Callable[..., Made]) -> Made:
    """The environment, or a new one from `make`, that renders pictures if it can."""
    if made.render_mode is not None or "rgb_array" not in (made.metadata.get("render_modes") or ()):
        return made
    if _takes(make, "render_mode"):
        with suppress(TypeError):  # it lists the mode but takes no such argument
            rendering = make(render_mode="rgb_array")
            made.close()
            return rendering
    made.unwrapped.render_mode = "rgb_array"  # environments read it when they render
    return made


def _takes(make: Callable[..., Any], argument: str) -> bool:
    if isinstance(make, partial) and make.func in (gym.make, gym.make_vec):
        return argument == "render_mode"
    try:
        return argument in inspect.signature(make).parameters
    except (TypeError, ValueError):  # some callables have no signature
        return False


def probe_env(config: EnvConfig, factory: EnvFactory | None = None) -> tuple[EnvSpec, EnvConfig]:
    """The spec of the environment, and the config with the environment's defaults filled in."""
    if factory is None and config.id.startswith(DMC):
        return probe_dmc(config), resolve(config)
    with chdir(Path.cwd()), closing(make_envs(config, factory, num_envs=1)) as envs:
        spec, masks = envs.spec, envs.reading.masks
        if not is_importable(config.id):
            config = dataclasses.replace(config, id=registered_id(envs.vector) or config.id)
        if config.id.startswith(ATARI) or config.action_masks != "auto":
            return spec, config
        if masks == "none" and spec.discrete:
            with suppress(EnvironmentFailedError):  # it fails again in the run, where this is reported
                masks = "none" if info_mask(envs.reset(seed=0)[1]) is None else "info"
    config = dataclasses.replace(config, action_masks=masks)  # type: ignore[arg-type]
    if masks == "info":
        with chdir(Path.cwd()), closing(make_envs(config, factory, num_envs=1)) as envs:
            envs.reset(seed=0)  # an unusable mask is refused
            return envs.spec, config
    return spec, config


def registered_id(vector: VectorEnv) -> str | None:
    """The id by which any process makes the same environments, made by a function; None where there is none.

    It is of environments that Gymnasium, voidrl or a listed package registers: an id that a script registers
    is unknown elsewhere.
    """
    first = vector.envs[0] if isinstance(vector, SyncVectorEnv) else None
    made = first.env.spec if isinstance(first, CheckedEnv) else None
    if made is None or made.id not in gym.registry:
        return None
    known = gym.spec(made.id)
    if dataclasses.replace(made, kwargs=known.kwargs, max_episode_steps=known.max_episode_steps) != known:
        return None  # more wrappers
    if package_of(made.id) is None and not str(known.entry_point).startswith(KNOWN_EVERYWHERE):
        return None
    options = {name: value for name, value in made.kwargs.items() if name != "render_mode"}
    try:
        changed = {name: value for name, value in options.items() if known.kwargs.get(name, made) != value}
    except ValueError:  # arrays
        return None
    if made.max_episode_steps != known.max_episode_steps:
        changed["max_episode_steps"] = made.max_episode_steps
    return format_id(made.id, changed)


def is_found(env: str) -> bool:
    """Whether this process can import or knows what an id names."""
    name, _ = parse_id(env)
    try:
        if ":" in name and not GYM_ID.search(name):
            _imported(name)
        elif not name.startswith((ATARI, DMC)):
            _find(name)
    except VoidrlError:
        return False
    return True


def _find(name: str) -> gym.envs.registration.EnvSpec:
    if not name:
        raise ConfigError(
            "no environment was given: expected an id such as voidrl/PixelMaze-v0, or a factory"
        )
    module, _, name = name.rpartition(":")
    failed = "" if module or name in gym.registry else import_environments()
    try:
        if module:
            importlib.import_module(module)  # registers its environments
        else:
            import_package(name)
        return gym.spec(name)
    except ImportError as error:
        raise ConfigError(f"environment {name!r} cannot be made: {error}") from error
    except gym.error.Error:
        if failed:
            raise ConfigError(f"environment {name!r} is unknown, and {failed}") from None
        remedy = "A custom one is 'module:factory'; see `voidrl list envs`."
        if name.rpartition("/")[2] in NAMES:
            remedy = f"DMControl's is '{DMC}{name.rpartition('/')[2]}'."
        with suppress(UnknownNameError):
            remedy = f"The Atari game is '{ATARI}{find_game(name.rpartition('/')[2])}'."
        raise UnknownNameError("environment", name, gym.registry, remedy, with_colon(name)) from None
