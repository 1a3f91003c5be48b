"""Which runs an experiment takes: every cell with its whole config, made before the first one begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from voidrl import build
from voidrl.config import PIECES, Config, EnvConfig, default_piece, flat, merge, require, to_json, update
from voidrl.envs.dmc import resolve
from voidrl.envs.ids import ATARI, DMC
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.evaluation import EVALUATION_STREAM, run_seed
from voidrl.experiments.dry_build import outline_bytes
from voidrl.experiments.format import PHASES, Arm, Evaluation, Experiment, Phase, Variation
from voidrl.experiments.probe import Look, look
from voidrl.experiments.scale import FEW_UPDATES, learns, scaled, scaled_evaluation, updates, warmup_steps
from voidrl.experiments.tasks import Place, Task, select
from voidrl.protocols.presets import default_preset, protocol_for
from voidrl.suites.dmcontrol import find_place
from voidrl.units import parse_count

Layers = list[Mapping[str, Any]]
# What `--set` cannot change for all runs at once.
ARGUMENTS = {
    "method.name": "the methods have an option of their own, --methods",
    "seed": "the seeds have an option of their own, --seeds",
    "device": "the device has an option of its own, --device",
    "engine": "the engine has an option of its own, --engine",
    "env": "the tasks have an option of their own, --tasks",
    "env.id": "the tasks have an option of their own, --tasks",
    "phase": "each run has its own",
    "steps": "phases differ: set pretrain.steps, finetune.steps or train.steps, or use --steps-scale",
}
OF_ONE_PHASE = ("pretrain", "train")  # prefixes of `--set`; `finetune` is a part of the config itself


@dataclass(frozen=True)
class Request:
    """What the command line asks for; by default the experiment as its file has it."""

    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    steps_scale: float = 1.0
    preset: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """To the config of all runs, by dotted names; those of a phase begin with `pretrain.` or `train.`, those
    of the evaluation with `evaluation.`."""
    device: str = "auto"
    engine: str = "auto"


@dataclass(frozen=True)
class Cell:
    """One run."""

    folder: str
    """Below the folder of the experiment: `walker_run/apt/seed1`."""
    arm: Arm
    label: str
    """The row of a table that it belongs to."""
    task: str
    """The environment's id."""
    config: Config
    source: str | None
    """The folder of the pre-training that it begins from."""
    evaluation: dict[str, Any] | None
    """Its settings, as `voidrl.scores.score.record` keeps them."""
    ends: bool
    """Whether it is the last run of an arm; others are there to be gone on from."""
    protocol_steps: int
    """What the experiment's own protocol takes, whatever was asked for."""
    preset: str | None
    look: Look = field(repr=False, compare=False)
    agent_bytes: int | None
    """Of a checkpoint without the replay; None where that is not known before it is made."""

    @property
    def phase(self) -> str:
        """Pre-training, fine-tuning or training from scratch."""
        return self.config.phase

    @property
    def seed(self) -> int:
        """Of everything random in it."""
        return self.config.seed


@dataclass(frozen=True)
class Plan:
    """All of them, in the order in which they are begun."""

    experiment: Experiment
    request: Request
    out: Path
    cells: list[Cell]
    missing: dict[str, str]
    notes: list[str]
    """What the one who asked should know."""

    @property
    def published(self) -> str | None:
        """The table that results can be held against; none where agents see something else than there."""
        theirs, ours = (
            [
                protocol_for(task.env, name or default_preset(task.env)).get("env", {}).get("dmc", {})
                for task in self.experiment.tasks
            ]
            for name in (self.experiment.preset, self.request.preset or self.experiment.preset)
        )
        alike = [values.get("observation") for values in theirs] == [
            values.get("observation") for values in ours
        ]
        return self.experiment.published if alike else None

    def path(self, cell: Cell | str) -> Path:
        """The run folder of a cell."""
        return self.out / (cell if isinstance(cell, str) else cell.folder)


def make_plan(experiment: Experiment, request: Request, out: str | Path | None = None) -> Plan:
    """Every run that is asked for, and those that they begin from."""
    arms = _chosen_arms(experiment, request.methods)
    tasks = select(experiment.tasks, request.tasks) if request.tasks else [*experiment.tasks]
    seeds = request.seeds or experiment.seeds
    once = len({*seeds}) == len(seeds)
    require(once, "seeds", [*seeds], "each of them once")
    require(0 < request.steps_scale < float("inf"), "steps_scale", request.steps_scale, "a number above 0")
    for name, value in flat(merge(request.changes)).items():
        if name in ARGUMENTS or name.partition(".")[2] in ("seed", "device", "engine"):
            why = ARGUMENTS.get(name) or ARGUMENTS[name.partition(".")[2]]
            raise ConfigError(f"{name} = {value!r} cannot be set for all runs: {why}")
    maker = _Maker(experiment, request)
    cells: dict[str, Cell] = {}
    for seed in seeds:  # outermost, so that one seed of everything is there first
        for task in tasks:
            for arm in arms:
                for cell in maker.cells(arm, task, seed):
                    if cell.ends or cell.folder not in cells:  # a pre-training may be both
                        cells[cell.folder] = cell
    maker.require_effect()
    out = Path("runs", experiment.name) if out is None else Path(out).expanduser()
    made = [*cells.values()]
    return Plan(experiment, request, out, made, dict(experiment.missing), [*maker.notes(), *_notes(made)])


def _chosen_arms(experiment: Experiment, names: Sequence[str]) -> list[Arm]:
    for name in names:
        if name in experiment.missing:
            raise ConfigError(
                f"method {name!r} of experiment {experiment.name!r} is missing: voidrl does not have "
                f"{experiment.missing[name]} yet; there are {', '.join(experiment.arms)}"
            )
        if name not in experiment.arms:
            remedy = f"Methods are those of experiment {experiment.name!r}."
            raise UnknownNameError("method", name, experiment.arms, remedy)
    require(len({*names}) == len(names), "methods", [*names], "each of them once")
    return [arm for name, arm in experiment.arms.items() if not names or name in names]


def _notes(cells: Sequence[Cell]) -> Iterator[str]:
    idle = [cell for cell in cells if learns(cell.config) and not updates(cell.config)]
    few = [cell for cell in cells if 0 < updates(cell.config) < FEW_UPDATES]
    if idle:
        steps, warmup = idle[0].config.steps, warmup_steps(idle[0].config)
        yield (
            f"{len(idle)} runs learn nothing: {idle[0].folder} has {steps} steps and a warm-up of {warmup}"
        )
    if few:
        yield (
            f"{len(few)} runs make fewer than {FEW_UPDATES} updates ({few[0].folder} "
            f"{updates(few[0].config)}): they show how it works, not how well"
        )


class _Made(NamedTuple):
    """A config that can be run, of an arm in a phase and a place."""

    config: Config
    look: Look
    agent_bytes: int | None


class _Maker:
    """Makes cells; configs are made once for all seeds, and before they are scaled."""

    def __init__(self, experiment: Experiment, request: Request) -> None:
        self.experiment, self.request = experiment, request
        self.varied = experiment.with_preset.get(request.preset or "", Variation())
        changes = dict(request.changes)
        self.of_evaluation = _taken(changes, "evaluation")
        self.of_phase = {phase: _taken(changes, phase) for phase in OF_ONE_PHASE}
        self.changes = changes
        self.made: dict[tuple[str, str, str], _Made] = {}
        self.protocol: dict[tuple[str, str, str], int] = {}
        self.kept_by_arms: dict[str, set[str]] = {}

    def cells(self, arm: Arm, task: Task, seed: int) -> Iterator[Cell]:
        """The runs of an arm: the pre-training first, if it has one."""
        first, last = arm.phases[0], arm.phases[-1]
        source: Cell | None = None
        if last == "finetune":
            owner = arm if first == "pretrain" else self.experiment.arms[arm.source or ""]
            source = self._cell(owner, "pretrain", task, seed)
            yield source
        place: Place = task.pretrain if last == "pretrain" else task
        end = self._cell(arm, last, task, seed, source)
        yield dataclasses.replace(end, ends=True, evaluation=self._evaluation(arm, end.config, place))

    def _cell(self, arm: Arm, phase: str, task: Task, seed: int, source: Cell | None = None) -> Cell:
        place: Place = task.pretrain if phase == "pretrain" else task
        config, seen, agent_bytes = self._config(arm, phase, task)
        # Where a task is its own place of pre-training, the two runs of an arm need two folders.
        both = phase == "pretrain" and arm.phases[-1] == "finetune" and task.pretrain.env == task.env
        name = f"{arm.name}-pretrain" if both else arm.name
        return Cell(
            folder=f"{place.name}/{name}/seed{seed}",
            arm=arm,
            label=arm.of_phase.get(phase, Phase()).label or arm.label,
            task=config.env.id,
            config=scaled(dataclasses.replace(config, seed=seed), self.request.steps_scale),
            source=None if source is None else source.folder,
            evaluation=None,
            ends=False,
            protocol_steps=self._protocol_steps(arm, phase, place.env, config.env.dmc.action_repeat),
            preset=self._preset_name(place.env),
            look=seen,
            agent_bytes=agent_bytes,
        )

    def _preset_name(self, env: str) -> str | None:
        return self.request.preset or self.experiment.preset or default_preset(env)

    # Configs

    def _config(self, arm: Arm, phase: str, task: Task) -> _Made:
        """The config of a phase at full length, with any seed."""
        place: Place = task.pretrain if phase == "pretrain" else task
        # Games differ in nothing but their name.
        key = (arm.name, phase, ATARI if place.env.startswith(ATARI) else place.env)
        if key in self.made:
            made = self.made[key]
            env = made.config.env
            env = dataclasses.replace(env, id=place.env) if key[2] == ATARI else env
            return made._replace(config=dataclasses.replace(made.config, env=env))
        if phase == "finetune":
            owner = arm if arm.source is None else self.experiment.arms[arm.source]
            before = self._config(owner, "pretrain", task).config
            layers: Layers = [to_json(build.task_config(before)), self._file_config(phase)]
            layers += [] if arm.source is None else [arm.config]
            layers.append(arm.of_phase.get(phase, Phase()).config)
            merged = _layered(layers)
        else:
            merged = self._from_preset(arm, phase, place.env)
        if phase != "finetune" or arm.source is not None:
            _multiply(merged, arm.times)
        steps = self._steps(arm, phase)
        for name in [*flat(arm.config), *flat(arm.of_phase.get(phase, Phase()).config)]:
            if name in self.changes or name in self.of_phase.get(phase, {}):
                self.kept_by_arms.setdefault(name, set()).add(arm.label)
        request = self.request
        given = {"phase": phase, "device": request.device, "engine": request.engine}
        merged = _layered([merged, given if steps is None else {**given, "steps": steps}])
        inside = merged.get("env", {})
        require(isinstance(inside, Mapping), "env", inside, "a mapping; the id is the task's")
        seen = look(update(EnvConfig(), {**inside, "id": place.env}, "env."))
        if phase != "finetune":
            self._drop_foreign(merged, build.name_pieces(seen.spec, merged))
        config = build.build_config(seen.spec, [merged, {"env": to_json(seen.env)}])
        self.made[key] = _Made(config, seen, outline_bytes(seen.spec, config))
        return self.made[key]

    def _from_preset(self, arm: Arm, phase: str, env: str) -> dict[str, Any]:
        """Pre-training and training from scratch: protocol, recipe, and what file and command change."""
        shared = _layered([self.experiment.config, self.varied.config, self.changes])
        method = {} if arm.method is None else {"method": arm.method}
        own = [self._file_config(phase), self.of_phase[phase], method, arm.config]
        own.append(arm.of_phase.get(phase, Phase()).config)
        layers = build.layers_for(env, phase, self._preset_name(env), _layered(own), shared=shared)
        return _layered([layer.values for layer in layers])

    def _drop_foreign(self, merged: dict[str, Any], pieces: Mapping[str, Any]) -> None:
        """Drop what is set for all runs and the pieces of this one do not have, as `k` of a random agent."""
        shared = merge(self.experiment.config, self.varied.config, self.changes)
        for kind, piece in pieces.items():
            fields = {f.name for f in dataclasses.fields(default_piece(kind, piece["name"]))}
            for name in shared.get(kind, {}).keys() - fields:
                merged[kind].pop(name, None)

    def _file_config(self, phase: str) -> dict[str, Any]:
        """The file's changes for a phase; where the command line changes the same for all, that counts."""
        files = (self.experiment.of_phase.get(phase, Phase()), self.varied.of_phase.get(phase, Phase()))
        values = flat(merge(*(each.config for each in files)))
        return {name: value for name, value in values.items() if name not in self.changes}

    def _steps(self, arm: Arm, phase: str) -> int | None:
        """Of the run, where the file or the command line say so; None leaves them to the preset."""
        asked = self.changes.get("finetune.steps") if phase != "pretrain" else None
        given = self.of_phase.get(phase, {}).get("steps", asked)
        if given is not None:
            return parse_count(given, f"{phase}.steps")
        return _file_steps(self.experiment, arm, phase, self.varied)

    def _protocol_steps(self, arm: Arm, phase: str, env: str, action_repeat: int) -> int:
        """How long the experiment itself has it, in steps that hold an action for as many frames as here."""
        key = (arm.name, phase, env)
        if key not in self.protocol:
            begun = "train" if phase == "train" else "pretrain"
            layers = build.layers_for(env, begun, self.experiment.preset, self.experiment.config)
            merged = merge(*(layer.values for layer in layers))
            usual = merged.get("steps", Config().steps)
            if phase == "finetune":
                usual = merged.get("finetune", {}).get("steps") or usual
            steps = int(_file_steps(self.experiment, arm, phase, Variation()) or usual)
            if env.startswith(DMC):
                theirs = resolve(update(EnvConfig(), {**merged.get("env", {}), "id": env}, "env."))
                steps = steps * theirs.dmc.action_repeat // action_repeat
            self.protocol[key] = steps
        return self.protocol[key]

    # Evaluations

    def _evaluation(self, arm: Arm, config: Config, place: Place) -> dict[str, Any] | None:
        asked = arm.evaluation
        if asked is not None and self.varied.evaluation is not None:
            asked = self.varied.evaluation
        if asked is None:
            return None
        asked = scaled_evaluation(_changed(asked, self.of_evaluation), self.request.steps_scale)
        found = find_place(place.env)
        if found is not None and found.task is None and not asked.count_states:
            raise ConfigError(
                f"method {arm.name!r} ends in {place.env!r}, which has no reward that could be evaluated: "
                f"set evaluation = false in its table, or count_states = true in [evaluation]"
            )
        return {
            "env": config.env.id,
            "episodes": asked.episodes,
            "steps": asked.steps,
            "seed": run_seed(config.seed, EVALUATION_STREAM),
            "deterministic": True,
            "epsilon": config.log.eval_epsilon,
            "num_envs": None,
            "count_states": asked.count_states,
        }

    # Checks

    def require_effect(self) -> None:
        """Refuse changes that none of the runs has: a field of a method that is not there."""
        known = {name for made in self.made.values() for name in flat(to_json(made.config))}
        phases = {phase for _, phase, _ in self.made}
        for name in flat(merge(self.changes)):
            if name not in known:
                raise UnknownNameError("config field", name, known, "None of the runs has it.")
        for phase, changes in self.of_phase.items():
            if changes and phase not in phases:
                raise ConfigError(
                    f"{phase}.{next(iter(changes))} cannot be set: none of the runs has the phase {phase!r}"
                )

    def notes(self) -> Iterator[str]:
        """Where an arm keeps its own value of what the command line sets for all."""
        for name, labels in self.kept_by_arms.items():
            yield f"{name} keeps its own value in {', '.join(sorted(labels))}"


def _file_steps(experiment: Experiment, arm: Arm, phase: str, varied: Variation) -> int | None:
    """What the file says; from scratch an agent trains as long as one is fine-tuned."""
    for name in (phase, "finetune") if phase == "train" else (phase,):
        for of_phase in (arm.of_phase, varied.of_phase, experiment.of_phase):
            steps = of_phase.get(name, Phase()).steps
            if steps is not None:
                return steps
    return None


def _layered(layers: Layers) -> dict[str, Any]:
    """As `merge`, but another representation, learner or method keeps the settings that both have.

    Arms are compared with each other: what is not said to differ must not.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        new = merge(layer)
        for kind in PIECES:
            name, old = new.get(kind, {}).get("name"), merged.get(kind, {})
            if name is not None and old.get("name", name) != name:
                both = {f.name for f in dataclasses.fields(default_piece(kind, name))} - {"name"}
                merged[kind] = {"name": name, **{k: v for k, v in old.items() if k in both}}
        merged = merge(merged, new)
    return merged


def _multiply(merged: dict[str, Any], times: Mapping[str, Any]) -> None:
    """Where a field has no value of its own, there is nothing to multiply."""
    for name, factor in flat(times).items():
        *parts, last = name.split(".")
        table = merged
        for part in parts:
            table = table.get(part, {})
        if isinstance(table.get(last), int | float):
            table[last] = table[last] * factor


def _changed(evaluation: Evaluation, changes: Mapping[str, Any]) -> Evaluation:
    """With what `--set evaluation.…` says."""
    known = [f.name for f in dataclasses.fields(Evaluation)]
    for name, value in changes.items():
        if name not in known:
            raise UnknownNameError("option", f"evaluation.{name}", [f"evaluation.{each}" for each in known])
        if name == "count_states":
            require(isinstance(value, bool), "evaluation.count_states", value, "true or false")
            evaluation = dataclasses.replace(evaluation, count_states=value)
            continue
        count = parse_count(value, f"evaluation.{name}")
        lengths = (count, None) if name == "episodes" else (None, count)
        evaluation = dataclasses.replace(evaluation, episodes=lengths[0], steps=lengths[1])
    return evaluation


def _taken(changes: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Those whose names begin with a prefix, without it; they are no longer among the others."""
    mine = [name for name in changes if name.startswith(f"{prefix}.")]
    return {name.removeprefix(f"{prefix}."): changes.pop(name) for name in mine}


assert set(OF_ONE_PHASE) < set(PHASES)
