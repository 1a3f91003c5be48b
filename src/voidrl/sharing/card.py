"""The model card of an agent, made only from its config and the records of its run.

Text of others, such as an id in a downloaded agent, is shown as inline code, where nothing is markup.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from voidrl.config import PIECES, bonus_method
from voidrl.envs.ids import is_importable
from voidrl.envs.spaces import spec_from_json
from voidrl.errors import CheckpointError, RunFolderError
from voidrl.runs.checkpoint import MANIFEST, read_json
from voidrl.runs.evaluations import final_evaluation
from voidrl.runs.metrics import read_metrics

if TYPE_CHECKING:
    from voidrl.training.evaluation import Evaluation

PHASES = {
    "pretrain": "pre-training without rewards",
    "finetune": "fine-tuning on a reward",
    "train": "training from scratch on a reward",
}
# `about` in the config.json of an agent
ABOUT = {
    "run?": {"steps?": int, "date": str, "versions": {"*": str | None}, "machine": str, "commit": str | None},
    "results?": [
        {
            **dict.fromkeys(("env", "how"), str),
            **dict.fromkeys(("mean_return", "std_return"), int | float),
            **dict.fromkeys(("human_normalized", "success_rate"), int | float | None),
            "episodes": int,
        }
    ],
}
_MARK = re.compile(r"\n<!-- Written by voidrl; .* sha256 ([0-9a-f]{64}) -->\n\Z")


# Records about the agent


def describe_run(origin: Path, sha256: str) -> dict[str, Any]:
    """Return the records about these weights in the run that is `origin`, or that has this checkpoint."""
    is_checkpoint = (origin / MANIFEST).is_file()
    checkpoints = [origin] if is_checkpoint else sorted(origin.glob("checkpoints/step_*"))[-1:]
    for folder in checkpoints:
        with suppress(CheckpointError, RunFolderError, KeyError, TypeError):  # nothing is known, or damaged
            saved = read_json(folder / MANIFEST, "a manifest")
            if saved["files"]["agent.safetensors"]["sha256"] == sha256:
                run, meta = folder.parents[1], saved["meta"]
                return {"run": _describe(run, meta), "results": _results(run, meta)}
    return {}


def _describe(run: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    made = read_json(run / "environment.json", "the machine of a run")
    cpu = f"{made['cpu']['model']}, {made['cpu']['count']} cores"
    return {
        **({"steps": meta["steps"]} if "steps" in meta else {}),  # a snapshot has only those of its agent
        "date": made["date"],
        "versions": made["versions"],
        "machine": "; ".join([*(gpu["name"] for gpu in made["gpus"]), cpu, made["platform"]]),
        "commit": (made["git"] or {}).get("commit"),
    }


def _results(run: Path, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the evaluations of exactly this agent: by `voidrl evaluate` and during training."""
    config, steps, found = meta["config"], meta.get("steps"), []
    with suppress(RunFolderError, KeyError, TypeError):
        saved = None if steps is None else final_evaluation(run, steps)
        if saved is not None and saved["agent"]["steps_with_pretraining"] == meta["agent_steps"]:
            successes, how = saved["successes"], saved["settings"]
            row = {"eval/return": saved["mean_return"], "eval/return_std": saved["std_return"]}
            row |= {"eval/episodes": saved["episodes"], "eval/human_normalized": saved["human_normalized"]}
            row |= {"eval/success": sum(successes) / len(successes) if successes else None}
            noise = "without" if how["deterministic"] else "with"
            policy = f"seed {how['seed']}, {noise} exploration noise, ε = {how['epsilon']}"
            found.append(result(how["env"], row, f"by voidrl evaluate: {policy}"))
    kept: dict[str, Any] | None = meta.get("evaluation")  # of an agent that fine-tuning kept as its best
    if steps is not None:
        rows = (each for each in reversed(read_metrics(run)) if each["step"] == steps)
        kept = next((each for each in rows if each.get("eval/return") is not None), None)
    if kept is not None:
        found.append(result(config["env"]["id"], kept, f"during training, after step {kept['step']}"))
    return found


def result_from(env: str, evaluation: Evaluation) -> dict[str, Any]:
    """Return the entry for an evaluation passed in by the user."""
    return result(env, evaluation.metrics(), "by voidrl.evaluate")


def result(env: str, row: Mapping[str, Any], how: str) -> dict[str, Any]:
    """Return the entry for an evaluation that a row of metrics has."""
    numbers = {"mean_return": row["eval/return"], "std_return": row["eval/return_std"]}
    shares = {"success_rate": row.get("eval/success"), "human_normalized": row.get("eval/human_normalized")}
    return {"env": env, **numbers, "episodes": row["eval/episodes"], **shares, "how": how}


# The page


def code(text: object) -> str:
    """Text of others as inline code on one line, which a cell of a table may hold."""
    return f"`{one_line(text) or '(empty)'}`"


def one_line(text: object) -> str:
    """Text without line breaks and control characters, and without those that end code or a cell."""
    spaced = "".join(each if each.isprintable() else " " for each in str(text))
    return " ".join(spaced.replace("`", "'").replace("|", "¦").split())


def render(data: Mapping[str, Any], *, parameters: int, license: str | None, repo_id: str | None) -> str:
    """Return the card for the contents of a `config.json`, with a mark that `is_edited` recognizes."""
    config, spec = data["config"], spec_from_json(data["spec"])
    run, results = data["about"].get("run", {}), data["about"].get("results", [])
    env, phase, pieces = config["env"]["id"], config["phase"], [config[kind]["name"] for kind in PIECES]
    wrappers, importable = config["env"].get("wrappers", []), is_importable(env)
    names = [env.partition("?")[0]] if importable else []
    algorithm = config["learner" if phase == "train" else "method"]["name"]
    tags = [one_line(each) for each in (*names, algorithm)]
    front: dict[str, Any] = {"library_name": "voidrl", "pipeline_tag": "reinforcement-learning"}
    front |= {"license": license} if license else {}
    front["tags"] = ["reinforcement-learning", "voidrl", *tags]
    if results:
        name = (repo_id or (tags[0] if names else "agent")).rpartition("/")[2]
        front["model-index"] = [{"name": name or "agent", "results": [_model_index(results[0])]}]
    stack = () if spec.frame_stack == 1 else (spec.frame_stack,)
    kind = f"{'uint8' if spec.pixels else 'float32'} of shape {(*stack, *spec.raw_shape)}"
    template = resources.files("voidrl.sharing").joinpath("templates/model_card.md").read_text("utf-8")
    text = Environment(keep_trailing_newline=True, autoescape=False).from_string(template).render(
        front="\n".join(f"{name}: {json.dumps(value)}" for name, value in front.items()),
        title=code(algorithm.rpartition(":")[2]),
        place=code(env) if importable else "a custom environment",
        env_argument=json.dumps(env) if importable else "make_env",
        importable=importable,
        phase=phase,
        bonus=bool(bonus_method(config)),
        method=code(config["method"]["name"]),
        agent_steps=data["agent_steps"],
        run_steps=run.get("steps"),
        repo_id=repo_id,
        trust=repo_id is not None and bool(wrappers or any(":" in name for name in pieces)),
        external=", ".join(code(name) for name in (*names, *wrappers, *pieces) if ":" in name),
        observation=f"{kind}, or a batch" if not spec.parts else "as the environment returns it",
        spec=spec.describe(),
        results=[_cells(each) for each in results],
        training=_training(data, run, parameters),
        license=license,
    )  # fmt: skip
    return f"{text}\n<!-- Written by voidrl; edited cards are kept. sha256 {_digest(text)} -->\n"


def is_edited(text: str) -> bool:
    """Whether a card was edited after `render` wrote it."""
    mark = _MARK.search(text)
    return mark is None or mark[1] != _digest(text[: mark.start()])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _model_index(found: Mapping[str, Any]) -> dict[str, Any]:
    """The result as the Hub reads it."""
    env = one_line(found["env"]) if is_importable(found["env"]) else "a custom environment"
    metrics = {"mean_reward": ("mean return", found["mean_return"])}
    if found["success_rate"] is not None:
        metrics["success_rate"] = ("success", found["success_rate"])
    over = f"over {found['episodes']} episodes"
    return {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"type": env.partition("?")[0], "name": env},
        "metrics": [
            {"type": kind, "name": f"{name} {over}", "value": value, "verified": False}
            for kind, (name, value) in metrics.items()
        ],
    }


def _cells(found: Mapping[str, Any]) -> dict[str, Any]:
    """Format one result for the table."""
    cells = {name: f"{found[name]:.6g}" for name in ("mean_return", "std_return")}
    for name in ("success_rate", "human_normalized"):
        cells[name] = "" if found[name] is None else f"{found[name]:.1%}"
    env = code(found["env"]) if is_importable(found["env"]) else "a custom environment"
    return {**found, **cells, "env": env, "how": code(found["how"])}


def _training(data: Mapping[str, Any], run: Mapping[str, Any], parameters: int) -> dict[str, str]:
    """Return the rows of the training table; unknown values are left out."""
    config, versions = data["config"], run.get("versions") or {"voidrl": data["voidrl"]}
    phase, bonus = config["phase"], bonus_method(config)
    pretrains = phase != "train" or bool(bonus)
    uses_f = pretrains or config["representation"]["auxiliary"] or config["share_encoder"] != "nothing"
    rows = {
        "phase": PHASES[phase] + (f" + {code(bonus)}" if bonus else ""),
        "method": code(config["method"]["name"]) if pretrains else "",
        "representation": code(config["representation"]["name"]) if uses_f else "",
        "learner": code(config["learner"]["name"]),
        "steps": f"{data['agent_steps']:,}{' over all phases' * (phase == 'finetune')}",
        "seed": config["seed"],
        "parameters and buffers": f"{parameters:,}",
        "machine": code(run["machine"]) if run.get("machine") else "",
        "versions": code(", ".join(f"{name} {version}" for name, version in versions.items() if version)),
        "Git commit": code(run["commit"]) if run.get("commit") else "",
        "started": code(run["date"]) if run.get("date") else "",
    }
    return {name: str(value) for name, value in rows.items() if value != ""}
