"""The configs of an experiment's runs, complete before the first one starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

from voidrl.config import (
    PIECES,
    Config,
    EnvConfig,
    default_piece,
    flat,
    merge,
    registry,
    require,
    to_json,
    update,
)
from voidrl.envs.dmc import resolve
from voidrl.envs.ids import ATARI, DMC
from voidrl.envs.make import probe_env
from voidrl.envs.suites.dmcontrol import find_dmc_task
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.experiments import scale
from voidrl.experiments.format import ArmSpec, EvaluationSpec, ExperimentSpec, read_table
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.tasks import Task
from voidrl.system.units import parse_count
from voidrl.training import build
from voidrl.training.build import layers_for, task_config
from voidrl.training.evaluation import EVALUATION_STREAM, run_seed
from voidrl.types import EnvSpec

ATARI_SIZE = 84
PHASE_PREFIXES = ("pretrain", "train")  # of `--set`; `finetune` is a part of the config itself
# Fields of `finetune` that are about pre-trained weights, and their values where these make no difference.
# From scratch, all others hold as well.
ADAPTATION = {
    "heads": "auto",
    "encoder_learning_rate": None,
    "first_layer_learning_rate": None,
    "warmup_actions": "random",
    "adapt": False,
}
NOISE = ("epsilon", "stddev")  # schedules of learners, from `…_start` to `…_end`


class Configs:
    """The configs of all runs of a request, for any seed and at full length; each is made once.

    Args:
        experiment: The experiment.
        request: The request, with the values of a point of the grid among its changes.
        base: The configs of the request without a point, which have its notes and default presets.
    """

    def __init__(
        self, experiment: ExperimentSpec, request: ExperimentRequest, base: Configs | None = None
    ) -> None:
        self.experiment, self.request, self.base = experiment, request, base or self
        self.changes = dict(request.changes)
        self.evaluation_changes = _pop_prefix(self.changes, "evaluation")
        self.phase_changes = {phase: _pop_prefix(self.changes, phase) for phase in PHASE_PREFIXES}
        self.prepared: dict[tuple[str, str, str], tuple[Config, EnvSpec]] = {}
        self.notes: dict[str, None] = self.base.notes if base else {}
        """Sentences for the user, without repetitions."""
        self.presets: dict[str, str | None] = {}
        """Presets of environments for which none is named."""
        own = dataclasses.replace(request, changes={}, preset=experiment.preset or request.preset)
        self.protocol: Configs = (
            self if own == request else base.protocol if base else Configs(experiment, own)
        )
        """The configs of the experiment as in its file."""

    def config(self, arm: ArmSpec, phase: str, task: Task) -> Config:
        """The config of an arm in a phase."""
        return self.prepare(arm, phase, task)[0]

    def prepare(self, arm: ArmSpec, phase: str, task: Task) -> tuple[Config, EnvSpec]:
        """The config of an arm in a phase, and the spec of its environment."""
        where = task.pretrain if phase == "pretrain" else task
        key = (arm.name, phase, where.name)
        if key not in self.prepared:
            self.prepared[key] = self._make_config(arm, phase, task, where.env)
        return self.prepared[key]

    def protocol_steps(self, arm: ArmSpec, phase: str, task: Task) -> int:
        """Steps in the experiment's own protocol, whatever was requested, at the requested action repeat."""
        config, own = self.config(arm, phase, task), self.protocol.config(arm, phase, task)
        return own.steps * (own.env.dmc.action_repeat or 1) // (config.env.dmc.action_repeat or 1)

    def scale(self, part: str) -> float:
        """The factor for a phase, or for evaluations."""
        return self.request.steps_scale if part in self.experiment.scaled else 1.0

    def _make_config(self, arm: ArmSpec, phase: str, task: Task, env_id: str) -> tuple[Config, EnvSpec]:
        own = arm.by_phase[phase].config
        dropped_of = None
        if phase == "finetune":
            pretrained = self.config(self.experiment.pretrained(arm), "pretrain", task)
            given = [own] if arm.source is None else [arm.config, own]
            merged = _layered(to_json(task_config(pretrained)), self._file_config(phase, task), *given)
        elif arm.like is not None:
            merged = self._from_finetuning(arm, self.experiment.arms[arm.like], task)
        else:
            merged, dropped_of = self._from_preset(arm, phase, task, env_id), task
        for name in [*flat(arm.config), *flat(own)]:
            if name in self.changes or name in self.phase_changes.get(phase, {}):
                self.notes[f"{name} keeps its own value in {arm.label}"] = None
        fixed = {"phase": phase, "device": self.request.device, "engine": self.request.engine}
        steps = self._steps(arm, phase, task)
        merged = merge(merged, fixed if steps is None else {**fixed, "steps": steps})
        return self._build(merged, env_id, dropped_of)

    def _build(self, merged: dict[str, Any], env_id: str, task: Task | None) -> tuple[Config, EnvSpec]:
        """The complete config; values for all runs of a task that its pieces do not have are dropped."""
        spec, env = probe(_env_config(merged, env_id))
        if task is not None:
            shared = merge(*self._shared(task))
            for kind, piece in build.name_pieces(spec, merged).items():  # such as `k` of a random agent
                for name in shared.get(kind, {}).keys() - _piece_fields(kind, piece["name"]):
                    if name not in (known := self._fields_of_any(kind)):
                        candidates = [f"{kind}.{each}" for each in known]
                        raise UnknownNameError("config field", f"{kind}.{name}", candidates)
                    merged.get(kind, {}).pop(name, None)
        return build.build_config(spec, [merged, {"env": to_json(env)}]), spec

    def _fields_of_any(self, kind: str) -> set[str]:
        """The fields of all pieces of a kind, those of the file's custom methods included."""
        own = {arm.method for arm in self.experiment.arms.values() if arm.method and kind == "method"}
        return {field for name in [*registry.names(kind), *own] for field in _piece_fields(kind, name)}

    def _from_finetuning(self, arm: ArmSpec, tuned_arm: ArmSpec, task: Task) -> dict[str, Any]:
        """Training from scratch with the settings of an arm's fine-tuning, and changes to this phase."""
        tuned = self.config(tuned_arm, "finetune", task)
        values = {name: getattr(tuned.finetune, name) for name in ADAPTATION}
        adapted = [f"finetune.{name} = {v!r}" for name, v in values.items() if v != ADAPTATION[name]]
        if adapted:
            text = f"{arm.label} has no counterpart of what {tuned_arm.label} has: {', '.join(adapted)}"
            self.notes[text] = None
        changes = [self._file_config("train", task), self.phase_changes["train"]]
        return _layered(to_json(scratch_config(tuned)), *changes, arm.config, arm.by_phase["train"].config)

    def _from_preset(self, arm: ArmSpec, phase: str, task: Task, env: str) -> dict[str, Any]:
        """Pre-training and training from scratch: preset, recipe, and the changes of file and command."""
        shared = _layered(*self._shared(task))
        if arm.preset is not None and phase == "train":
            shared.pop("finetune", None)  # an agent with its own preset is not set up as fine-tuning is
        method: dict[str, Any] = {} if arm.method is None else {"method": arm.method}
        own = [self._file_config(phase, task), self.phase_changes[phase], method, arm.config]
        own.append(arm.by_phase[phase].config)
        preset = arm.preset or self.base.default_preset(task)
        layers = layers_for(env, phase, preset, _layered(*own), shared=shared, bonus=arm.bonus)
        return _layered(*(layer.values for layer in layers))

    def default_preset(self, task: Task) -> str | None:
        """The preset of arms without their own; where none is named, the one that `voidrl pretrain` takes."""
        env, named = task.pretrain.env, self.request.preset or self.experiment.preset
        if named is None and env not in self.presets:
            given = {k: v for k, v in self.phase_changes["pretrain"].items() if k != "steps"}
            given["device"] = self.request.device
            layers = layers_for(env, "pretrain", None, given, shared=_layered(*self._shared(task)))
            config, spec = self._build(merge(*(layer.values for layer in layers)), env, task)
            may_have_gpus = self.request.elsewhere and self.request.device == "auto"
            note = "" if may_have_gpus else build.cpu_preset_note(env, spec, config)
            self.presets[env] = build.CPU_PRESET if note else None
            self.notes |= {f"{env}: {note}": None} if note else {}
        return named or self.presets[env]

    def _shared(self, task: Task) -> list[Mapping[str, Any]]:
        """The layers shared by all runs of a task."""
        return [self.experiment.config, task.config, self.changes]

    def _file_config(self, phase: str, task: Task) -> dict[str, Any]:
        """The file's changes for a phase, except fields that the command line changes for all phases."""
        values = flat(merge(self.experiment.by_phase[phase].config, task.by_phase[phase].config))
        return {name: value for name, value in values.items() if name not in self.changes}

    def _steps(self, arm: ArmSpec, phase: str, task: Task) -> int | None:
        """Steps on the command line or in the file; None for the preset's."""
        # Training from scratch is as long as fine-tuning, except for an agent with its own preset.
        as_finetuned = phase == "train" and arm.preset is None and arm.like is None
        names = (phase, "finetune") if as_finetuned else (phase,)
        given = [self.phase_changes.get(phase, {}).get("steps")]
        given += [self.changes.get(f"{name}.steps") for name in names]
        given += [spec.by_phase[name].steps for name in names for spec in (arm, task, self.experiment)]
        steps = next((each for each in given if each is not None), None)
        return None if steps is None else parse_count(steps, f"{phase}.steps", zero=phase == "pretrain")

    # Evaluations

    def is_zero_shot(self, arm: ArmSpec) -> bool:
        """Whether pre-trained agents of an arm are evaluated before they are fine-tuned."""
        return arm.evaluation is not None and self._changed(arm.evaluation).zero_shot

    def evaluation(self, arm: ArmSpec, config: Config) -> dict[str, Any] | None:
        """Settings of the evaluation of an arm's agents, as in evaluation.json."""
        spec = arm.evaluation
        if spec is None:
            return None
        if spec.episodes is None and spec.steps is None:
            spec = dataclasses.replace(spec, episodes=config.log.eval_episodes)
        spec = scale.scale_evaluation(self._changed(spec), self.scale("evaluation"))
        found = find_dmc_task(config.env.id)
        if found is not None and found.task is None and not spec.count_states:
            raise ConfigError(
                f"method {arm.name!r} ends in {config.env.id!r}, which has no reward to evaluate: set "
                f"evaluation = false in its table, or count_states = true in [evaluation]"
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

    def _changed(self, evaluation: EvaluationSpec) -> EvaluationSpec:
        """Apply `--set evaluation.…`; episodes and steps replace each other."""
        read = read_table("evaluation", "evaluation", self.evaluation_changes)
        if {"episodes", "steps"} & {*read}:
            read = {"episodes": None, "steps": None, **read}
        return dataclasses.replace(evaluation, **read)

    def known_fields(self) -> set[str]:
        """The config fields of all runs so far."""
        return {name for config, _ in self.prepared.values() for name in flat(to_json(config))}

    def require_effect(self) -> None:
        """Refuse changes that apply to none of the runs, such as a field of a method that is not there."""
        known, phases = self.known_fields(), {phase for _, phase, _ in self.prepared}
        for name in flat(merge(self.changes)):
            if name not in known:
                raise UnknownNameError("config field", name, known, "None of the runs has it.")
        for phase, changes in self.phase_changes.items():
            if changes and phase not in phases:
                raise ConfigError(
                    f"{phase}.{next(iter(changes))} cannot be set: none of the runs has the phase {phase!r}"
                )


def _layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """As `merge`, but another representation, learner or method keeps the settings that both have.

    Arms are compared with each other: they must differ only in what the file says.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        new = merge(layer)
        for kind in PIECES:
            piece, old = new.get(kind, {}), merged.get(kind, {})
            require(isinstance(piece, Mapping), kind, piece, "a name or a table of values")
            name = piece.get("name", old.get("name"))
            if "name" in old and name != old["name"]:
                both = _piece_fields(kind, name) - {"name"}
                merged[kind] = {"name": name, **{k: v for k, v in old.items() if k in both}}
        merged = merge(merged, new)
    return merged


def _piece_fields(kind: str, name: str) -> set[str]:
    return {f.name for f in dataclasses.fields(default_piece(kind, name))}


def _env_config(merged: Mapping[str, Any], env_id: str) -> EnvConfig:
    env = merged.get("env", {})
    require(isinstance(env, Mapping), "env", env, "a table; the id is the task's")
    return update(EnvConfig(), {**env, "id": env_id}, "env.")


def _pop_prefix(changes: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove the changes whose names begin with a prefix, and return them without it."""
    names = [name for name in changes if name.startswith(f"{prefix}.")]
    return {name.removeprefix(f"{prefix}."): changes.pop(name) for name in names}


@cache
def probe(config: EnvConfig) -> tuple[EnvSpec, EnvConfig]:
    """The spec of an environment, and its config with the environment's defaults filled in.

    Atari and DMControl are known by their ids, but for the width of states, as a plan may be made where no
    simulator is installed. Any other environment is made once and closed.
    """
    stack = config.frame_stack
    if config.id.startswith(ATARI):
        return EnvSpec((1, ATARI_SIZE, ATARI_SIZE), pixels=True, frame_stack=stack, num_actions=18), config
    if not config.id.startswith(DMC):
        return probe_env(config)
    resolved, pixels = resolve(config), config.dmc.observation == "pixels"
    frame = (3, config.dmc.image_size, config.dmc.image_size) if pixels else (1,)
    return EnvSpec(frame, pixels, stack, 0, (-1.0,), (1.0,)), resolved


def scratch_config(tuned: Config) -> Config:
    """The config that trains from scratch exactly as this one fine-tunes."""
    tuning, learner = tuned.finetune, tuned.learner
    learner = dataclasses.replace(learner, learning_rate=tuned.effective.learning_rate)
    if tuning.noise == "end":
        ends = {f"{name}_start": getattr(learner, f"{name}_end", None) for name in NOISE}
        learner = dataclasses.replace(learner, **{k: v for k, v in ends.items() if v is not None})
    return dataclasses.replace(
        tuned,
        phase="train",
        updates_per_step=tuning.updates_per_step or tuned.updates_per_step,
        warmup_steps=tuning.warmup_steps,
        learner=learner,
    )
