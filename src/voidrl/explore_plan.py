"""What `voidrl explore` is asked to do: every run with its whole config, checked before the first begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voidrl import api, checkpoint, registry
from voidrl.config import Config, EnvConfig, default_piece, merge, require, to_json, update
from voidrl.envs import make_envs
from voidrl.errors import ConfigError, RunFolderError, UnknownNameError
from voidrl.evaluation import EVALUATION_STREAM, run_seed
from voidrl.games import find_game
from voidrl.ids import atari_game
from voidrl.presets import preset as find_preset
from voidrl.progress import parse_count

METHODS = ("apt", "positive", "random")
PRESET = "atari-demo"
EVAL_STEPS, DEMO_EVAL_STEPS = 125_000, 10_000  # the paper's; for the preset of minutes
TUNED = "apt"  # the method whose agent is fine-tuned
FINETUNED, SCRATCH = "finetuned", "scratch"
# What has an argument of its own, or none at all.
ARGUMENTS = {
    "method.name": "the methods are an argument of their own",
    "seed": "the seeds are an argument of their own",
    "steps": "the steps are an argument of their own",
    "device": "the device is an argument of its own",
    "env": "the environment is an argument of its own",
    "env.id": "the environment is an argument of its own",
    "env.count_states": "states are always counted",
    "phase": "each run has its own",
}
ANYWHERE = {"device", "engine"}  # where a run is computed: it may go on, or be read, on another machine


@dataclass(frozen=True)
class Part:
    """A run that is asked for."""

    name: str
    """The method, `finetuned` or `scratch`."""
    seed: int
    folder: Path
    config: Config
    evaluation: dict[str, Any]
    """The settings of its evaluation, as `voidrl.score.record` keeps them."""


@dataclass(frozen=True)
class Plan:
    """All of them."""

    env: str
    game: str
    out: Path
    preset: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    eval_steps: int
    finetune_steps: int | None
    changes: dict[str, Any]
    """To the preset, by dotted names."""
    parts: list[Part]


def make_plan(
    env: str,
    out: str | Path | None,
    methods: Sequence[str],
    seeds: Sequence[int],
    preset: str,
    steps: int | str | None,
    eval_steps: int | str | None,
    finetune_steps: int | str | None,
    config: Mapping[str, Any] | None,
    device: str,
) -> Plan:
    """Read the arguments of `run_explore`."""
    game = _game(env)
    require(isinstance(config, Mapping | None), "config", config, "a mapping of values")
    changes = _flat(merge(config or {}))
    _check_names(methods, seeds, changes)
    if eval_steps is None:
        eval_steps = DEMO_EVAL_STEPS if preset == PRESET else EVAL_STEPS
    eval_steps = parse_count(eval_steps, "eval_steps")
    if finetune_steps is not None:
        finetune_steps = parse_count(finetune_steps, "finetune_steps")
        if TUNED not in methods:
            raise ConfigError(
                f"finetune_steps = {finetune_steps} cannot be used with methods {[*methods]!r}: it is the "
                f"agent of {TUNED!r} that is fine-tuned; add {TUNED!r} to them, or leave out the fine-tuning"
            )
    given = {"device": device} | ({} if steps is None else {"steps": parse_count(steps)})
    configs = _configs(env, methods, find_preset(preset), changes, given)
    if finetune_steps is not None:
        configs |= _task_configs(configs[TUNED], finetune_steps)
    out = Path("runs", f"explore-{game}") if out is None else Path(out).expanduser()
    parts = [part for seed in seeds for part in _parts(out / f"seed{seed}", configs, seed, eval_steps)]
    return Plan(
        env=env,
        game=game,
        out=out,
        preset=preset,
        methods=tuple(methods),
        seeds=tuple(seeds),
        steps=configs[methods[0]].steps,
        eval_steps=eval_steps,
        finetune_steps=finetune_steps,
        changes=changes,
        parts=parts,
    )


def refuse_another(part: Part) -> None:
    """An error if the folder holds a run with other settings."""
    path = part.folder / "config.json"
    if not path.is_file():
        return
    there = api.config_from_json(checkpoint.read_json(path, "the config of a run"))
    found, asked = _flat(to_json(there)), _flat(to_json(part.config))
    names = [name for name in {**asked, **found} if name not in ANYWHERE]
    if part.config.phase == "pretrain":  # which knows nothing of what comes after it
        names = [name for name in names if not name.startswith(("finetune.", "reward_scale"))]
    differ = [
        f"{name} is {found.get(name)!r} there and {asked.get(name)!r} here"
        for name in names
        if found.get(name) != asked.get(name)
    ]
    if differ:
        raise RunFolderError(
            f"{part.folder} holds a run with other settings: {', '.join(differ)}; ask for the same, or use "
            f"another --out"
        )


def _game(env: str) -> str:
    name = atari_game(env)
    if name is None:
        raise ConfigError(
            f"environment {env!r} cannot be explored: expected atari/<game>, whose memory can be read, such "
            f"as atari/ms_pacman"
        )
    try:
        return find_game(name)
    except UnknownNameError:
        return name  # not among the 57; whether there is such a game is known when it is made


def _check_names(methods: Sequence[str], seeds: Sequence[int], changes: Mapping[str, Any]) -> None:
    known = registry.names("method")
    for name in methods:
        if name not in known:
            raise UnknownNameError("method", name, known, "See `voidrl list methods`.")
    for what, values in (("methods", [*methods]), ("seeds", [*seeds])):
        once = bool(values) and len(set(values)) == len(values)
        require(once, what, values, "one or more, each of them once")
    for name, value in changes.items():
        if name in ARGUMENTS:
            raise ConfigError(f"{name} = {value!r} cannot be set for all runs: {ARGUMENTS[name]}")


def _configs(
    env: str,
    methods: Sequence[str],
    preset: Mapping[str, Any],
    changes: Mapping[str, Any],
    given: Mapping[str, Any],
) -> dict[str, Config]:
    """The config of each method's pre-training, with any seed."""
    env_changes = merge(preset, changes).get("env", {})
    env_config = update(EnvConfig(), {**env_changes, "id": env, "count_states": True}, "env.")
    with closing(make_envs(env_config, num_envs=1)) as probe:
        spec = probe.spec
    fields = {name: [f.name for f in dataclasses.fields(default_piece("method", name))] for name in methods}
    configs = {}
    for name in methods:
        mine = {field: v for field, v in changes.items() if not _is_of_another(field, name, fields)}
        layers = [preset, {"method": name}, mine, given, {"env": to_json(env_config), "phase": "pretrain"}]
        configs[name] = api.build_config(spec, layers)
    return configs


def _is_of_another(field: str, method: str, fields: Mapping[str, list[str]]) -> bool:
    """Whether a field is one of another method alone; one that none of them has is refused."""
    kind, _, name = field.partition(".")
    if kind != "method" or name in fields[method]:
        return False
    if not any(name in own for own in fields.values()):
        known = {f"method.{name}" for own in fields.values() for name in own}
        raise UnknownNameError("config field", field, known, f"Methods here: {', '.join(fields)}.")
    return True


def _task_configs(pretrained: Config, steps: int) -> dict[str, Config]:
    """Fine-tuning and training from scratch, with equal numbers of steps, and of updates in them.

    The learning rates are each phase's own: those with which the preset fine-tunes, and begins.
    """
    env = dataclasses.replace(pretrained.env, count_states=False)
    tuned = dataclasses.replace(api.task_config(pretrained), steps=steps, env=env)
    scratch = dataclasses.replace(tuned, phase="train", warmup_steps=tuned.finetune.warmup_steps)
    return {FINETUNED: tuned, SCRATCH: scratch}


def _parts(folder: Path, configs: Mapping[str, Config], seed: int, eval_steps: int) -> Iterator[Part]:
    for name, shared in configs.items():
        config = dataclasses.replace(shared, seed=seed)
        evaluation = {
            "env": config.env.id,
            "episodes": None,
            "steps": eval_steps,
            "seed": run_seed(seed, EVALUATION_STREAM),
            "deterministic": True,
            "epsilon": config.log.eval_epsilon,
            "num_envs": None,
            "count_states": True,
        }
        yield Part(name, seed, folder / name, config, evaluation)


def _flat(nested: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` → `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        inside = isinstance(value, Mapping)
        flat |= _flat(value, f"{path}{name}.") if inside else {path + name: value}
    return flat
