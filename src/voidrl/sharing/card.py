"""The model card of an agent, made only from its config and the records of its run.

Text of others, such as an id in a downloaded agent, is shown as inline code, where nothing is markup.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment

from voidrl.config import PIECES, bonus_method
from voidrl.envs.ids import is_importable
from voidrl.envs.spaces import spec_from_json
from voidrl.errors import CheckpointError, RunFolderError, printable
from voidrl.runs.checkpoint import MANIFEST, read_json
from voidrl.runs.evaluations import final_evaluation
from voidrl.runs.metrics import read_metrics

CARD = "README.md"
CUSTOM = "a custom environment"
PHASES = {
    "pretrain": "pre-training without rewards",
    "finetune": "fine-tuning on a reward",
    "train": "training from scratch on a reward",
}
_SHARE = int | float | None
_RESULT = {"env": str, "how": str, "mean_return": int | float, "std_return": int | float, "episodes": int}
# `about` in the config.json of an agent
ABOUT = {"results?": [{**_RESULT, "human_normalized": _SHARE, "success_rate": _SHARE}]}
_MARK = re.compile(r"\n<!-- Written by voidrl; .* sha256 ([0-9a-f]{64}) -->\n\Z")


# Evaluations of the agent


def results_of(origin: Path, sha256: str) -> list[dict[str, Any]]:
    """The evaluations of these weights in the run that is `origin`, or that has this checkpoint."""
    is_checkpoint = (origin / MANIFEST).is_file()
    found: list[dict[str, Any]] = []
    for folder in [origin] if is_checkpoint else sorted(origin.glob("checkpoints/step_*"))[-1:]:
        with suppress(CheckpointError, RunFolderError, KeyError, TypeError):  # nothing is known, or damaged
            saved = read_json(folder / MANIFEST, "a manifest")
            if saved["files"]["agent.safetensors"]["sha256"] == sha256:
                run, meta = folder.parents[1], saved["meta"]
                if "steps" in meta:  # no snapshot
                    with suppress(RunFolderError, KeyError, TypeError):
                        found += _after_training(run, meta)
                found += _during_training(run, meta)
    return found


def _after_training(run: Path, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluation by `voidrl evaluate`, if it is of this agent."""
    saved = final_evaluation(run, meta["steps"])
    if saved is None or saved["agent"]["steps_with_pretraining"] != meta["agent_steps"]:
        return []
    successes, how = saved["successes"], saved["settings"]
    noise = "without" if how["deterministic"] else "with"
    policy = f"seed {how['seed']}, {noise} exploration noise, ε = {how['epsilon']}"
    numbers = {key: saved[key] for key in ("mean_return", "std_return", "episodes", "human_normalized")}
    numbers["success_rate"] = sum(successes) / len(successes) if successes else None
    return [{"env": how["env"], **numbers, "how": f"by voidrl evaluate: {policy}"}]


def _during_training(run: Path, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluation by the run itself after the agent's last step."""
    row: dict[str, Any] | None = meta.get("evaluation")  # of an agent that fine-tuning kept as its best
    if "steps" in meta:
        of_it = (each for each in reversed(read_metrics(run)) if each["step"] == meta["steps"])
        row = next((each for each in of_it if each.get("eval/return") is not None), None)
    if row is None:
        return []
    return [result(meta["config"]["env"]["id"], row, f"during training, after step {row['step']}")]


def result(env: str, row: Mapping[str, Any], how: str) -> dict[str, Any]:
    """The entry for an evaluation in a row of metrics."""
    numbers = {"mean_return": row["eval/return"], "std_return": row["eval/return_std"]}
    shares = {"success_rate": row.get("eval/success"), "human_normalized": row.get("eval/human_normalized")}
    return {"env": env, **numbers, "episodes": row["eval/episodes"], **shares, "how": how}


# The page


def code(text: object) -> str:
    """Text of others as inline code on one line, which a cell of a table may hold."""
    return f"`{one_line(text) or '(empty)'}`"


def one_line(text: object) -> str:
    """Text without line breaks and control characters, and without those that end code or a cell."""
    return " ".join(printable(text).replace("`", "'").replace("|", "¦").split())


def _place(env: str, style: Callable[[object], str]) -> str:
    """An environment's id in a style; a function that cannot be imported elsewhere has no name."""
    return style(env) if is_importable(env) else CUSTOM


def render(data: Mapping[str, Any], *, license: str | None, repo_id: str | None) -> str:
    """Return the card for the contents of a `config.json`, with a mark that `is_edited` recognizes."""
    config, spec, results = data["config"], spec_from_json(data["spec"]), data["about"].get("results", [])
    env, phase, pieces = config["env"]["id"], config["phase"], [config[kind]["name"] for kind in PIECES]
    wrappers, importable = config["env"].get("wrappers", []), is_importable(env)
    names = [env.partition("?")[0]] if importable else []
    algorithm = config["learner" if phase == "train" else "method"]["name"]
    tags = [one_line(each) for each in (*names, algorithm)]
    front: dict[str, Any] = {"library_name": "voidrl", "pipeline_tag": "reinforcement-learning"}
    front |= {"license": license} if license else {}
    front["tags"] = ["reinforcement-learning", "voidrl", *tags]
    if results:  # the newest, as the Hub reads it
        where, name = _place(results[0]["env"], one_line), repo_id or (tags[0] if names else "agent")
        metric = {"type": "mean_reward", "value": results[0]["mean_return"], "verified": False}
        task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
        entry = {"task": task, "dataset": {"type": where.partition("?")[0], "name": where}}
        metric["name"] = f"mean return over {results[0]['episodes']} episodes"
        model = {"name": name.rpartition("/")[2] or "agent", "results": [{**entry, "metrics": [metric]}]}
        front["model-index"] = [model]
    stack = () if spec.frame_stack == 1 else (spec.frame_stack,)
    kind = f"{'uint8' if spec.pixels else 'float32'} of shape {(*stack, *spec.raw_shape)}"
    template = resources.files("voidrl.sharing").joinpath("templates/model_card.md").read_text("utf-8")
    text = Environment(keep_trailing_newline=True, autoescape=False).from_string(template).render(
        front="\n".join(f"{name}: {json.dumps(value)}" for name, value in front.items()),
        title=code(algorithm.rpartition(":")[2]),
        place=_place(env, code),
        env_argument=json.dumps(env) if importable else "make_env",
        importable=importable,
        phase=phase,
        bonus=bool(bonus_method(config)),
        method=code(config["method"]["name"]),
        agent_steps=data["agent_steps"],
        repo_id=repo_id,
        trust=repo_id is not None and bool(wrappers or any(":" in name for name in pieces)),
        external=", ".join(code(name) for name in (*names, *wrappers, *pieces) if ":" in name),
        observation=f"{kind}, or a batch" if not spec.parts else "as the environment returns it",
        spec=spec.describe(),
        results=[_cells(each) for each in results],
        training=_training(data),
        license=license,
    )  # fmt: skip
    return f"{text}\n<!-- Written by voidrl; edited cards are kept. sha256 {_digest(text)} -->\n"


def is_edited(text: str) -> bool:
    """Whether a card was edited after `render` wrote it."""
    mark = _MARK.search(text)
    return mark is None or mark[1] != _digest(text[: mark.start()])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _cells(found: Mapping[str, Any]) -> dict[str, Any]:
    """Format one result for the table."""
    cells = {name: f"{found[name]:.6g}" for name in ("mean_return", "std_return")}
    for name in ("success_rate", "human_normalized"):
        cells[name] = "" if found[name] is None else f"{found[name]:.1%}"
    return {**found, **cells, "env": _place(found["env"], code), "how": code(found["how"])}


def _training(data: Mapping[str, Any]) -> dict[str, str]:
    """The rows of the training table."""
    config, bonus = data["config"], bonus_method(data["config"])
    pretrains = config["phase"] != "train" or bool(bonus)
    uses_f = pretrains or config["representation"]["auxiliary"] or config["share_encoder"] != "nothing"
    rows = {"phase": PHASES[config["phase"]] + (f" + {code(bonus)}" if bonus else "")}
    rows |= {"method": code(config["method"]["name"])} if pretrains else {}
    rows |= {"representation": code(config["representation"]["name"])} if uses_f else {}
    return rows | {
        "learner": code(config["learner"]["name"]),
        "steps": f"{data['agent_steps']:,}{' over all phases' * (config['phase'] == 'finetune')}",
        "seed": str(config["seed"]),
        "voidrl": code(data["voidrl"]),
    }
