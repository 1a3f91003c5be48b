"""Makes the plan of an experiment: all configs are complete before the first run starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from voidrl.config import (
    AUTOMATIC,
    PIECES,
    Config,
    EnvConfig,
    MethodConfig,
    PieceConfig,
    default_piece,
    flat,
    merge,
    require,
    to_json,
    update,
)
from voidrl.envs.dmc import resolve
from voidrl.envs.ids import ATARI, DMC, has_colon, names_code
from voidrl.envs.suites.dmcontrol import find_dmc_task
from voidrl.errors import ConfigError, RunFolderError, UnknownNameError
from voidrl.experiments import scale
from voidrl.experiments.format import ArmSpec, EvaluationSpec, ExperimentSpec, PresetChanges
from voidrl.experiments.grid import Point
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.points import Points
from voidrl.experiments.probe import EnvProbe, agent_bytes, probe
from voidrl.experiments.request import ExperimentRequest, left_out, select_arms
from voidrl.experiments.scratch import adaptations, scratch_config
from voidrl.experiments.seeds import RunSeeds, require_seeds, run_seeds
from voidrl.experiments.tasks import NamedEnv, PhaseSpec, Task, select
from voidrl.presets.presets import default_preset, protocol_for
from voidrl.runs.folder import RunFolder
from voidrl.system.files import user_path
from voidrl.system.units import parse_count
from voidrl.training import build
from voidrl.training.evaluation import EVALUATION_STREAM, run_seed
from voidrl.training.layers import BONUS_COEFFICIENT, implied_by_column, layers_for, task_config
from voidrl.types import EnvSpec

Layers = list[Mapping[str, Any]]
# Fields that `--set` cannot change for all runs, and why.
RESERVED = {
    "method.name": "use --methods",
    "seed": "use --seeds",
    "device": "use --device",
    "engine": "use --engine",
    "env": "use --tasks",
    "env.id": "use --tasks",
    "phase": "each run has its own",
    "steps": "phases differ: set pretrain.steps, finetune.steps or train.steps, or use --steps-scale",
}
# Base classes of the pieces of a kind.
COMMON: dict[str, type[PieceConfig]] = {"method": MethodConfig, **AUTOMATIC}
# Environments whose agents differ: vectors and images, with discrete and with continuous actions.
STAND_INS = tuple(
    EnvSpec(shape, len(shape) > 1, 1, *actions)
    for shape in ((4,), (3, 84, 84))
    for actions in ((2,), (0, (-1.0,), (1.0,)))
)
PHASE_PREFIXES = ("pretrain", "train")  # of `--set`; `finetune` is a part of the config itself


def make_plan(
    experiment: ExperimentSpec,
    request: ExperimentRequest,
    out: str | Path | None = None,
    *,
    run_code: bool = True,
) -> Plan:
    """Plan every requested run, and the pre-trainings that these start from.

    Without `run_code`, no code that the file names as `module:name` is imported. Runs with such code then
    have no spec, and a config in which custom method, representation and learner have the fields of all.
    """
    default_scale = experiment.at_scale(None).scale
    experiment = experiment.at_scale(request.scale)
    arms = select_arms(experiment, request)
    tasks = select(experiment.tasks, request.tasks) if request.tasks else [*experiment.tasks]
    require_seeds(experiment, request)
    require(0 < request.steps_scale < float("inf"), "steps_scale", request.steps_scale, "a number above 0")
    for name, value in flat(merge(request.changes)).items():
        if name in RESERVED or name.partition(".")[2] in ("seed", "device", "engine"):
            why = RESERVED.get(name) or RESERVED[name.partition(".")[2]]
            raise ConfigError(f"{name} = {value!r} cannot be set for all runs: {why}")
    request.require_grid(experiment)
    points = Points(
        experiment,
        request,
        tasks,
        arms,
        lambda spec, asked: Planner(spec, asked, run_code),
        run_code=run_code,
    )
    cells: dict[str, Cell] = {}
    runs = {arm.name: run_seeds(experiment, request, arm) for arm in arms}
    most = max(map(len, runs.values()))
    require(most > 0, "seeds", [*request.seeds, *request.pretrain_seeds], "seeds that one of the methods has")
    chosen = {arm.name: points.points(arm) for arm in arms}
    for place, task, arm in product(range(most), tasks, arms):  # one seed of everything is done first
        for seeds, point in product(runs[arm.name][place : place + 1], chosen[arm.name]):
            for cell in points.cells(arm, task, seeds, point):
                if cell.is_final or cell.folder not in cells:  # a pre-training may be both
                    cells[cell.folder] = cell
    if not experiment.has_grid:
        points.base.require_effect()
    if out is None:
        suffix = "" if experiment.scale == default_scale else f"-{experiment.scale}"
        out = Path("runs", experiment.name + suffix)
    else:
        out = user_path(out)
    if RunFolder(out).holds_run:
        raise RunFolderError(f"{out} holds a run, so no experiment can be kept there: use another --out")
    kept: dict[str, set[str]] = {}
    for planner in points.planners:
        for name, labels in planner.kept_by_arms.items():
            kept.setdefault(name, set()).update(labels)
    notes = [f"{name} keeps its own value in {', '.join(sorted(labels))}" for name, labels in kept.items()]
    notes += {note: None for planner in points.planners for note in planner.adapted}
    if not request.methods:
        notes += left_out(experiment, request, arms)

    def cells_at(arm: str, point: Point) -> list[Cell]:
        spec = experiment.arms[arm]
        found = [
            cell
            for seeds, task in product(runs[arm], tasks)
            for cell in points.cells(spec, task, seeds, point)
        ]
        return [*{cell.folder: cell for cell in found}.values()]

    notes += _notes([*cells.values()])
    return Plan(experiment, request, out, [*cells.values()], notes, points.axes, cells_at)


def _notes(cells: Sequence[Cell]) -> Iterator[str]:
    unknown = [cell for cell in cells if cell.probe.spec is None]
    if unknown:
        yield (
            f"{len(unknown)} runs need code that the file names (module:name, first in {unknown[0].folder}), "
            f"which a dry run does not import: their observations, settings and sizes are unknown"
        )
    learning = [cell for cell in cells if scale.learns(cell.config) and cell.config.steps]
    idle = [cell for cell in learning if not scale.count_updates(cell.config)]
    few = [cell for cell in cells if 0 < scale.count_updates(cell.config) < scale.FEW_UPDATES]
    if idle:
        config = idle[0].config
        due = f"a warm-up of {scale.warmup_steps(config)}"
        if config.learner.on_policy:
            due = f"rollouts of {scale.rollout_steps(config)}"
        yield f"{len(idle)} runs learn nothing: {idle[0].folder} has {config.steps} steps and {due}"
    if few:
        yield (
            f"{len(few)} runs make fewer than {scale.FEW_UPDATES} updates ({few[0].folder} "
            f"{scale.count_updates(few[0].config)}): they show how it works, not how well"
        )


class _Prepared(NamedTuple):
    """The config of an arm in a phase and an environment, at full length."""

    config: Config
    probe: EnvProbe
    agent_bytes: int | None


class Planner:
    """Makes cells; a config is made once for all seeds, before it is scaled."""

    def __init__(self, experiment: ExperimentSpec, request: ExperimentRequest, run_code: bool) -> None:
        self.experiment, self.request, self.run_code = experiment, request, run_code
        self.preset_changes = experiment.preset_changes.get(request.preset or "", PresetChanges())
        changes = dict(request.changes)
        self.evaluation_changes = _pop_prefix(changes, "evaluation")
        self.phase_changes = {phase: _pop_prefix(changes, phase) for phase in PHASE_PREFIXES}
        self.changes = changes
        self.prepared: dict[tuple[str, str, str], _Prepared] = {}
        self.protocols: dict[tuple[str | None, str], str] = {}
        self.protocol_steps: dict[tuple[str, str, str, int], int] = {}
        self.kept_by_arms: dict[str, set[str]] = {}
        """Arms that keep their own value of a field that the command line sets for all."""
        self.adapted: dict[str, None] = {}
        """Differences between arms trained `like` a fine-tuned one and that arm."""

    def cells(self, arm: ArmSpec, task: Task, seeds: RunSeeds) -> Iterator[Cell]:
        """The runs of an arm: the pre-training first, if it has one."""
        source: Cell | None = None
        if seeds.pretrain is not None:
            source_arm = self._source_arm(arm)
            source = self._cell(source_arm, "pretrain", task, RunSeeds(seeds.pretrain))
            if task.pretrain.env == task.env and self._is_zero_shot(source_arm):
                source = dataclasses.replace(source, evaluation=self._evaluation(source_arm, source.config))
            yield source
        final = self._cell(arm, arm.phases[-1], task, seeds, source)
        evaluation, zero_shot = self._evaluation(arm, final.config), None
        if source is not None and source.evaluation is None and evaluation and self._is_zero_shot(arm):
            seed = run_seed(source.config.seed, EVALUATION_STREAM)
            zero_shot = {**evaluation, "seed": seed, "count_states": False}
        yield dataclasses.replace(final, is_final=True, evaluation=evaluation, zero_shot=zero_shot)

    def config(self, arm: ArmSpec, phase: str, task: Task) -> Config:
        """The config of an arm in a phase, for any seed and at full length."""
        return self._prepare(arm, phase, task).config

    def _is_zero_shot(self, arm: ArmSpec) -> bool:
        """Whether pre-trained agents of an arm are evaluated before they are fine-tuned."""
        if arm.evaluation is None:
            return False
        spec = self._preset_changes(arm).evaluation or arm.evaluation
        return _change_evaluation(spec, self.evaluation_changes).zero_shot

    def _scale(self, part: str) -> float:
        """The factor for a phase, or for evaluations."""
        return self.request.steps_scale if part in self.experiment.scaled else 1.0

    def _source_arm(self, arm: ArmSpec) -> ArmSpec:
        """The arm whose pre-training it starts from, or would start from if it were not from scratch."""
        if arm.like is not None:
            arm = self.experiment.arms[arm.like]
        return arm if arm.source is None else self.experiment.arms[arm.source]

    def _cell(
        self, arm: ArmSpec, phase: str, task: Task, seeds: RunSeeds, source: Cell | None = None
    ) -> Cell:
        where: NamedEnv = task.pretrain if phase == "pretrain" else task
        config, env_probe, size = self._prepare(arm, phase, task)
        key = (arm.name, phase, where.name, config.env.dmc.action_repeat)
        if key not in self.protocol_steps:
            self.protocol_steps[key] = self._protocol_steps(arm, phase, task, config.env.dmc.action_repeat)
        # Where a task is pre-trained in itself, the two runs of an arm need two folders.
        both = phase == "pretrain" and arm.phases[-1] == "finetune" and task.pretrain.env == task.env
        name = f"{arm.name}-pretrain" if both else arm.name
        return Cell(
            folder=f"{where.name}/{name}/{seeds.folder}",
            arm=arm,
            label=arm.by_phase.get(phase, PhaseSpec()).label or arm.label,
            task=config.env.id,
            config=scale.scale_config(dataclasses.replace(config, seed=seeds.seed), self._scale(phase)),
            source=None if source is None else source.folder,
            evaluation=None,
            is_final=False,
            protocol_steps=self.protocol_steps[key],
            preset=self._preset_name(arm, where.env),
            probe=env_probe,
            agent_bytes=size,
            pretrain_seed=seeds.seed if phase == "pretrain" else seeds.pretrain,
        )

    def _preset_name(self, arm: ArmSpec, env: str) -> str | None:
        return (
            self._source_arm(arm).preset
            or self.request.preset
            or self.experiment.preset
            or default_preset(env)
        )

    def _protocol_text(self, preset: str | None, env: str) -> str:
        """The values of a preset in an environment, to distinguish different games."""
        key = (preset, env)
        if key not in self.protocols:
            self.protocols[key] = repr(sorted(flat(protocol_for(env, preset)).items()))
        return self.protocols[key]

    def _preset_changes(self, arm: ArmSpec) -> PresetChanges:
        """The file's changes for the requested preset; empty for an arm with its own."""
        return PresetChanges() if self._source_arm(arm).preset is not None else self.preset_changes

    # Configs

    def _prepare(self, arm: ArmSpec, phase: str, task: Task) -> _Prepared:
        where = task.pretrain if phase == "pretrain" else task
        env_id = where.env
        is_atari = env_id.startswith(ATARI)
        # Games differ only in their names, unless a preset or the file has values for one of them.
        alike = f"{ATARI} {self._protocol_text(self._preset_name(arm, env_id), env_id)}"
        alike += f" {task.config} {task.by_phase}"
        key = (arm.name, phase, alike if is_atari else where.name)
        if key not in self.prepared:
            self.prepared[key] = self._make_config(arm, phase, task, env_id)
        prepared = self.prepared[key]
        if is_atari:
            env = dataclasses.replace(prepared.config.env, id=env_id)
            prepared = prepared._replace(config=dataclasses.replace(prepared.config, env=env))
        return prepared

    def _make_config(self, arm: ArmSpec, phase: str, task: Task, env_id: str) -> _Prepared:
        arm_phase = arm.by_phase.get(phase, PhaseSpec()).config
        if phase == "finetune":
            pretrained = self._prepare(self._source_arm(arm), "pretrain", task).config
            layers: Layers = [to_json(task_config(pretrained)), self._file_config(arm, phase, task)]
            layers += [arm_phase] if arm.source is None else [arm.config, arm_phase]
            if implied := implied_by_column(layers, phase):
                layers.insert(*implied)
            merged = self._layered(layers)
        elif arm.like is not None:
            merged = self._from_finetuning(arm, arm_phase, task)
        else:
            merged = self._from_preset(arm, phase, task, env_id)
        if phase != "finetune" or arm.source is not None:
            _multiply(merged, arm.times)
        for name in [*flat(arm.config), *flat(arm_phase)]:
            if name in self.changes or name in self.phase_changes.get(phase, {}):
                self.kept_by_arms.setdefault(name, set()).add(arm.label)
        given = {"phase": phase, "device": self.request.device, "engine": self.request.engine}
        steps = self._requested_steps(arm, phase, task)
        merged = self._layered([merged, given if steps is None else {**given, "steps": steps}])
        env = merged.get("env", {})
        require(isinstance(env, Mapping), "env", env, "a mapping; the id is the task's")
        env_config = update(EnvConfig(), {**env, "id": env_id}, "env.")
        if not self.run_code and self._needs_code(arm, phase, task, env_id, merged):
            return self._without_code(arm, phase, task, merged, env_config)
        env_probe = probe(env_config)
        assert env_probe.spec is not None
        config = self._build(arm, phase, task, merged, env_probe.spec, env_probe.env)
        return _Prepared(config, env_probe, agent_bytes(env_probe.spec, config))

    def _build(
        self, arm: ArmSpec, phase: str, task: Task, merged: dict[str, Any], spec: EnvSpec, env: EnvConfig
    ) -> Config:
        if phase != "finetune" and arm.like is None:
            self._drop_foreign(arm, task, merged, build.name_pieces(spec, merged))
        return build.build_config(spec, [merged, {"env": to_json(env)}])

    def _layered(self, layers: Layers) -> dict[str, Any]:
        """As `merge`, but another representation, learner or method keeps the settings that both have.

        Arms are compared with each other: they must differ only in what the file says.
        """
        merged: dict[str, Any] = {}
        for layer in layers:
            new = merge(layer)
            for kind in PIECES:
                name, old = _piece_name(new, kind), merged.get(kind, {})
                if name is not None and old.get("name", name) != name:
                    both = self._piece_fields(kind, name) - {"name"}
                    merged[kind] = {"name": name, **{k: v for k, v in old.items() if k in both}}
            merged = merge(merged, new)
        return merged

    def _piece_fields(self, kind: str, name: str) -> set[str]:
        """The fields of a piece; for custom code that is not run, the fields of its base class."""
        unknown = not self.run_code and ":" in name
        return {f.name for f in dataclasses.fields(COMMON[kind] if unknown else default_piece(kind, name))}

    # Code that is not run

    def _needs_code(self, arm: ArmSpec, phase: str, task: Task, env_id: str, merged: dict[str, Any]) -> bool:
        """Whether the config of a run depends on code that the file names."""
        names = [_piece_name(merged, kind) for kind in PIECES]
        names += [flat(merged).get(f"{kind}.encoder.stack") for kind in PIECES]
        names.append(flat(merged).get("env.wrappers"))
        if names_code(env_id) or has_colon(names):
            return True
        return (
            phase == "finetune" and self._prepare(self._source_arm(arm), "pretrain", task).probe.spec is None
        )

    def _without_code(
        self, arm: ArmSpec, phase: str, task: Task, merged: dict[str, Any], env: EnvConfig
    ) -> _Prepared:
        """The config of a run as far as it is known without its code.

        Unknown observations and actions are taken to be some that have the most of the given settings. Pieces
        that are custom, or left to a custom method, have the settings that all of their kind have.
        """
        names = {kind: _piece_name(merged, kind) or getattr(Config(), kind).name for kind in PIECES}
        is_custom = ":" in names["method"]
        unknown = {k for k, name in names.items() if ":" in name or (is_custom and name == "auto")}
        known = {name: value for name, value in merged.items() if name not in unknown and name != "env"}
        for kind in AUTOMATIC.keys() & known.keys():
            if has_colon(flat(known[kind]).get("encoder.stack")):
                encoder = {k: v for k, v in known[kind]["encoder"].items() if k != "stack"}
                known[kind] = {**known[kind], "encoder": encoder}
        specs = STAND_INS
        if not names_code(env.id, env.wrappers):
            found = probe(env)
            assert found.spec is not None
            env, specs = found.env, (found.spec,)
        spec = min(specs, key=lambda spec: self._foreign(known, spec))
        config = self._build(arm, phase, task, known, spec, env)
        pieces: dict[str, Any] = {}
        for kind in unknown:
            fields = {f.name for f in dataclasses.fields(COMMON[kind])} - {"name"}
            given = {name: value for name, value in merged.get(kind, {}).items() if name in fields}
            pieces[kind] = update(COMMON[kind](names[kind]), given, f"{kind}.")
        return _Prepared(dataclasses.replace(config, **pieces), EnvProbe(None, env, is_exact=False), None)

    def _foreign(self, merged: Mapping[str, Any], spec: EnvSpec) -> int:
        """Number of given settings that an agent in such an environment would not have."""
        pieces = build.name_pieces(spec, merged)
        return sum(len({*given} - self._piece_fields(kind, given["name"])) for kind, given in pieces.items())

    def _from_preset(self, arm: ArmSpec, phase: str, task: Task, env: str) -> dict[str, Any]:
        """Pre-training and training from scratch: protocol, recipe, and the changes of file and command."""
        shared = self._layered(self._shared(arm, task))
        if arm.preset is not None and phase == "train":
            shared.pop("finetune", None)  # an agent with its own protocol is not set up as fine-tuning is
        method: dict[str, Any] = {} if arm.method is None else {"method": arm.method}
        bonus = arm.bonus
        if bonus is not None and not self.run_code and ":" in bonus:
            method = {"method": bonus, "bonus.coefficient": BONUS_COEFFICIENT}
            bonus = None
        own = [self._file_config(arm, phase, task), self.phase_changes[phase], method, arm.config]
        own.append(arm.by_phase.get(phase, PhaseSpec()).config)
        preset = self._preset_name(arm, env)
        layers = layers_for(
            env, phase, preset, self._layered(own), shared=shared, bonus=bonus, run_code=self.run_code
        )
        return self._layered([layer.values for layer in layers])

    def _from_finetuning(self, arm: ArmSpec, arm_phase: Mapping[str, Any], task: Task) -> dict[str, Any]:
        """Training from scratch with the settings of an arm's fine-tuning, and changes to this phase."""
        assert arm.like is not None
        tuned_arm = self.experiment.arms[arm.like]
        tuned = self._prepare(tuned_arm, "finetune", task).config
        for text in adaptations(tuned):
            self.adapted[f"{tuned_arm.label} and {arm.label} differ in more than the weights: {text}"] = None
        own = [self._file_config(arm, "train", task), self.phase_changes["train"], arm.config, arm_phase]
        return self._layered([to_json(scratch_config(tuned)), *own])

    def _shared(self, arm: ArmSpec, task: Task) -> Layers:
        """The layers shared by all runs of a task."""
        return [self.experiment.config, self._preset_changes(arm).config, task.config, self.changes]

    def _drop_foreign(
        self, arm: ArmSpec, task: Task, merged: dict[str, Any], pieces: Mapping[str, Any]
    ) -> None:
        """Drop values for all runs that the pieces of this one do not have, such as `k` of a random agent."""
        shared = merge(*self._shared(arm, task))
        for kind, piece in pieces.items():
            fields = self._piece_fields(kind, piece["name"])
            for name in shared.get(kind, {}).keys() - fields:
                merged.get(kind, {}).pop(name, None)

    def _file_config(self, arm: ArmSpec, phase: str, task: Task) -> dict[str, Any]:
        """The file's changes for a phase, except fields that the command line changes for all phases."""
        tables = (self.experiment, self._preset_changes(arm), task)
        specs = (each.by_phase.get(phase, PhaseSpec()) for each in tables)
        values = flat(merge(*(spec.config for spec in specs)))
        return {name: value for name, value in values.items() if name not in self.changes}

    def _requested_steps(self, arm: ArmSpec, phase: str, task: Task) -> int | None:
        """Steps in the file or on the command line; None for the preset's."""
        as_finetuned = phase == "finetune" or (phase == "train" and arm.preset is None and arm.like is None)
        default = self.changes.get("finetune.steps") if as_finetuned else None
        given = self.phase_changes.get(phase, {}).get("steps", default)
        if given is not None:
            return parse_count(given, f"{phase}.steps", zero=phase == "pretrain")
        return _file_steps(phase, arm, task, self._preset_changes(arm), self.experiment)

    def _protocol_steps(self, arm: ArmSpec, phase: str, task: Task, action_repeat: int) -> int:
        """Steps in the experiment's own protocol, converted to this action repeat."""
        if arm.like is not None and _file_steps(phase, arm, task, self.experiment) is None:
            return self._protocol_steps(self.experiment.arms[arm.like], "finetune", task, action_repeat)
        env = task.pretrain.env if phase == "pretrain" else task.env
        started = "train" if phase == "train" else "pretrain"
        preset = self._source_arm(arm).preset or self.experiment.preset
        config = merge(self.experiment.config, task.config)
        layers = layers_for(env, started, preset, config, run_code=self.run_code)
        merged = merge(*(layer.values for layer in layers))
        default = merged.get("steps", Config().steps)
        if phase == "finetune":
            default = merged.get("finetune", {}).get("steps") or default
        given = _file_steps(phase, arm, task, self.experiment)
        steps = int(default if given is None else given)
        if not env.startswith(DMC):
            return steps
        protocol = resolve(update(EnvConfig(), {**merged.get("env", {}), "id": env}, "env."))
        return steps * protocol.dmc.action_repeat // action_repeat

    # Evaluations

    def _evaluation(self, arm: ArmSpec, config: Config) -> dict[str, Any] | None:
        if arm.evaluation is None:
            return None
        spec = self._preset_changes(arm).evaluation or arm.evaluation
        if spec.episodes is None and spec.steps is None:
            spec = dataclasses.replace(spec, episodes=config.log.eval_episodes)
        spec = _change_evaluation(spec, self.evaluation_changes)
        spec = scale.scale_evaluation(spec, self._scale("evaluation"))
        found = find_dmc_task(config.env.id)
        if found is not None and found.task is None and not spec.count_states:
            raise ConfigError(
                f"method {arm.name!r} ends in {config.env.id!r}, which has no reward that could be "
                f"evaluated: set evaluation = false in its table, or count_states = true in [evaluation]"
            )
        return {
            "env": config.env.id,
            "episodes": spec.episodes,
            "steps": spec.steps,
            "seed": run_seed(config.seed, EVALUATION_STREAM),
            "deterministic": True,
            "epsilon": config.log.eval_epsilon,
            "num_envs": None,
            "count_states": spec.count_states,
        }

    # Checks

    def require_effect(self) -> None:
        """Refuse changes that apply to none of the runs, such as a field of a method that is not there."""
        known = {name for made in self.prepared.values() for name in flat(to_json(made.config))}
        phases = {phase for _, phase, _ in self.prepared}
        unknown = any(made.probe.spec is None for made in self.prepared.values())
        for name in flat(merge(self.changes)):
            if name not in known and not (unknown and name.partition(".")[0] in PIECES):
                raise UnknownNameError("config field", name, known, "None of the runs has it.")
        for phase, changes in self.phase_changes.items():
            if changes and phase not in phases:
                raise ConfigError(
                    f"{phase}.{next(iter(changes))} cannot be set: none of the runs has the phase {phase!r}"
                )


def _file_steps(phase: str, arm: ArmSpec, *specs: Task | PresetChanges | ExperimentSpec) -> int | None:
    """The first steps in the file; training from scratch takes the steps of fine-tuning by default.

    An agent with its own protocol has its own number of steps.
    """
    as_finetuned = phase == "train" and arm.preset is None and arm.like is None
    names = (phase, "finetune") if as_finetuned else (phase,)
    found = (spec.by_phase.get(name, PhaseSpec()).steps for name in names for spec in (arm, *specs))
    return next((steps for steps in found if steps is not None), None)


def _piece_name(merged: Mapping[str, Any], kind: str) -> str | None:
    piece = merged.get(kind, {})
    require(isinstance(piece, Mapping), kind, piece, "a name or a table of values")
    name: str | None = piece.get("name")
    require(name is None or isinstance(name, str), f"{kind}.name", name, "a name")
    return name


def _multiply(merged: dict[str, Any], times: Mapping[str, Any]) -> None:
    """Multiply fields in place; those without a value are left to the defaults."""
    for name, factor in flat(times).items():
        *parts, last = name.split(".")
        table = merged
        for part in parts:
            table = table.get(part, {})
        if isinstance(table.get(last), int | float):
            table[last] = table[last] * factor


def _change_evaluation(evaluation: EvaluationSpec, changes: Mapping[str, Any]) -> EvaluationSpec:
    """Apply `--set evaluation.…`; episodes and steps replace each other."""
    known = [f.name for f in dataclasses.fields(EvaluationSpec)]
    for name, value in changes.items():
        if name not in known:
            raise UnknownNameError("option", f"evaluation.{name}", [f"evaluation.{each}" for each in known])
        if name in ("count_states", "zero_shot"):
            require(isinstance(value, bool), f"evaluation.{name}", value, "true or false")
            changed: dict[str, Any] = {name: value}
        else:
            changed = {"episodes": None, "steps": None, name: parse_count(value, f"evaluation.{name}")}
        evaluation = dataclasses.replace(evaluation, **changed)
    return evaluation


def _pop_prefix(changes: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove the changes whose names begin with a prefix, and return them without it."""
    names = [name for name in changes if name.startswith(f"{prefix}.")]
    return {name.removeprefix(f"{prefix}."): changes.pop(name) for name in names}
