"""The model card of an agent: what is known of it from its config and its run, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidrl.checkpoint import MANIFEST, read_json
from voidrl.config import PIECES
from voidrl.envs.ids import is_importable
from voidrl.errors import CheckpointError, RunFolderError
from voidrl.runs.evaluations import final_evaluation
from voidrl.runs.metrics import read_metrics
from voidrl.types import EnvSpec

if TYPE_CHECKING:
    from voidrl.agent import Agent
    from voidrl.evaluation import Evaluation

_MARK = re.compile(r"\n<!-- Written by voidrl; .* sha256 ([0-9a-f]{64}) -->\n\Z")


# Environments


def told_env(env: str) -> str:
    """An environment in words that are true wherever they are read."""
    if is_importable(env):
        return f"`{env}`"
    name = _function(env)
    return f"a function `{name}` of the author's script" if name else "a function of the author's script"


def _function(env: str) -> str | None:
    """The name of a function that cannot be imported; lambdas and partials have none."""
    name = env.partition("?")[0].rpartition(":")[2].rpartition(".")[2]
    return name if name.isidentifier() else None


# What is known


def run_of(path: Path, sha256: str) -> dict[str, Any]:
    """What the run at or above a folder says about the agent with these weights; nothing if it has none."""
    for folder in (path, *path.absolute().parents[:2]):
        if (folder / "environment.json").is_file():
            break
    else:
        return {}
    for manifest in sorted(folder.glob(f"*/step_*/{MANIFEST}"), reverse=True):
        try:
            saved = read_json(manifest, "a manifest")
            if saved["files"]["agent.safetensors"]["sha256"] == sha256:
                return _known(folder, saved["meta"])
        except (CheckpointError, KeyError, TypeError):
            continue  # damaged, or another one's
    return {}


def _known(run: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    try:
        machine = read_json(run / "environment.json", "the machine of a run")
        cpu = machine["cpu"]
        about = {
            "date": machine["date"],
            "command": _command(machine["command"]),
            "versions": machine["versions"],
            "platform": machine["platform"],
            "cpu": f"{cpu['model']}, {cpu['count']} cores",
            "gpus": [gpu["name"] for gpu in machine["gpus"]],
            "commit": (machine["git"] or {}).get("commit"),
        }
    except (CheckpointError, KeyError, TypeError):
        about = {}
    if "steps" not in meta:  # a snapshot, which is never evaluated and does not tell the run's own steps
        return {"run": about, "results": []}
    results = [*_evaluated(run, meta), *_logged(run, meta)]
    return {"run": {"steps": meta["steps"], **about}, "results": results}


def _command(text: str) -> str | None:
    """A command line as one would type it, without where things lie in its author's home."""
    words = shlex.split(text)
    program = Path(words[0]).name if words else ""
    if program in ("", "-c", "-m") or "kernel_launcher" in program:  # no command: a notebook, say
        return None
    home = str(Path.home())
    shown = [f"~{word[len(home) :]}" if word.startswith(f"{home}/") else word for word in words[1:]]
    return shlex.join([*(("python", program) if program.endswith(".py") else (program,)), *shown])


def _evaluated(run: Path, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `voidrl evaluate` was told to write beside the run, if it is of this very agent."""
    try:
        saved = final_evaluation(run, meta["steps"])
        if saved is None:
            return []
        agent, settings = saved["agent"], saved["settings"]
        if (agent["steps"], agent["steps_with_pretraining"]) != (meta["steps"], meta["agent_steps"]):
            return []
        length = (
            "whole episodes" if settings["steps"] is None else f"whole episodes of {settings['steps']} steps"
        )
        how = f"by `voidrl evaluate`: {length}, seed {settings['seed']}, {_policy(settings)}"
        return [_result(settings["env"], saved, saved["successes"], how)]
    except (CheckpointError, RunFolderError, KeyError, TypeError):
        return []


def _policy(settings: Mapping[str, Any]) -> str:
    kind = "without exploration noise" if settings["deterministic"] else "with exploration noise"
    share = settings["epsilon"]
    return f"{kind}, {f'{share:.3g} of actions random' if share else 'no random actions'}"


def _logged(run: Path, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluation that training itself made of this very agent."""
    try:
        rows = [row for row in read_metrics(run) if row["step"] == meta["steps"]]
        row = next(row for row in reversed(rows) if row.get("eval/return") is not None)
        settings = {"deterministic": True, "epsilon": meta["config"]["log"]["eval_epsilon"]}
        numbers = {
            "mean_return": row["eval/return"],
            "std_return": row["eval/return_std"],
            "episodes": row["eval/episodes"],
            "success_rate": row.get("eval/success"),
            "human_normalized": row.get("eval/human_normalized"),
        }
        how = f"by the run itself, after its step {meta['steps']}: whole episodes, {_policy(settings)}"
        return [{"env": meta["config"]["env"]["id"], **numbers, "how": how}]
    except (RunFolderError, StopIteration, KeyError, TypeError):
        return []


def given_result(agent: Agent, evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation that whoever saves the agent brings along."""
    row = evaluation.metrics()
    numbers = {
        "mean_return": evaluation.mean_return,
        "std_return": row["eval/return_std"],
        "episodes": len(evaluation.returns),
        "human_normalized": evaluation.human_normalized,
    }
    return _result(agent.config.env.id, numbers, evaluation.successes, "by `voidrl.evaluate`: whole episodes")


def _result(env: str, numbers: Mapping[str, Any], successes: list[bool] | None, how: str) -> dict[str, Any]:
    names = ("mean_return", "std_return", "episodes", "human_normalized")
    rate = sum(successes) / len(successes) if successes else None
    return {"env": env, **{name: numbers[name] for name in names}, "success_rate": rate, "how": how}


# The page


def render(data: Mapping[str, Any], *, parameters: int, license: str | None, repo_id: str | None) -> str:
    """The card of what `config.json` says, ending in a mark by which `is_edited` knows it again."""
    import jinja2

    config, spec = data["config"], EnvSpec.from_json(data["spec"])
    run, results = data["about"].get("run", {}), data["about"].get("results", [])
    env, method = config["env"]["id"], config["method"]["name"]
    shape = spec.raw_shape if spec.frame_stack == 1 else (spec.frame_stack, *spec.raw_shape)
    taught = config["learner"]["name"] if config["phase"] == "train" else method
    pieces = [config[kind]["name"] for kind in PIECES]
    public = is_importable(env)
    known = [env.partition("?")[0]] if public else []
    foreign = ", ".join(f"`{name}`" for name in (*known, *pieces) if ":" in name)
    template = resources.files("voidrl.sharing").joinpath("templates/model_card.md").read_text("utf-8")
    jinja = jinja2.Environment(  # the page is Markdown, not HTML
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    jinja.filters |= {
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "cell": _cell,
        "told": told_env,
    }
    text = jinja.from_string(template).render(
        name=(repo_id or (known or ["agent"])[0]).rpartition("/")[2],
        repo_id=repo_id,
        license=license,
        tags=dict.fromkeys(["reinforcement-learning", "voidrl", *known, taught]),
        env=env,
        public=public,
        place=f"`{env}`" if public else "its author's own environment",
        given=json.dumps(env, ensure_ascii=False) if public else _function(env) or "make_env",
        phase=config["phase"],
        method=method,
        title=taught.partition(":")[2] or taught,
        agent_steps=data["agent_steps"],
        observation=f"{'uint8' if spec.pixels else 'float32'} of shape {shape}, or a batch of them",
        spec=spec.describe(),
        foreign=foreign,
        trust=repo_id is not None and any(":" in name for name in pieces),
        run=run if "steps" in run else None,
        results=results,
        dataset=_dataset(results[0]["env"]) if results else {},
        metrics=_metrics(results[0]) if results else [],
        any_success=any(result["success_rate"] is not None for result in results),
        any_human=any(result["human_normalized"] is not None for result in results),
        training=_training(data, run, spec, parameters),
        count=lambda n: f"{n:,}",
        number=lambda x: f"{x:.6g}",
        percent=lambda share: "" if share is None else f"{share:.1%}",
    )
    text = re.sub(r"\n{3,}", "\n\n", text)
    return f"{text}\n<!-- Written by voidrl; a card that was edited is kept. sha256 {_digest(text)} -->\n"


def is_edited(text: str) -> bool:
    """Whether a card is not, or no longer, as `render` wrote it."""
    mark = _MARK.search(text)
    return mark is None or mark[1] != _digest(text[: mark.start()])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|")


def _dataset(env: str) -> dict[str, str]:
    """The Hub's words for the environment of a result; it asks for both."""
    if is_importable(env):
        return {"type": env.partition("?")[0], "name": env}
    return {"type": "custom", "name": "the author's own environment"}


def _metrics(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    over = f"over {result['episodes']} episodes"
    metrics = [{"type": "mean_reward", "name": f"mean return {over}", "value": result["mean_return"]}]
    if result["success_rate"] is not None:
        metrics.append({"type": "success_rate", "name": f"success {over}", "value": result["success_rate"]})
    return metrics


def _training(
    data: Mapping[str, Any], run: Mapping[str, Any], spec: EnvSpec, parameters: int
) -> dict[str, Any]:
    """The rows of the table, those left out of which nothing is known."""
    config, versions = data["config"], run.get("versions") or {"voidrl": data["voidrl"]}
    phases = {
        "pretrain": "pre-training without rewards",
        "finetune": "fine-tuning on a reward",
        "train": "training from scratch on a reward",
    }
    machine = [*run.get("gpus", []), run.get("cpu"), run.get("platform")]
    rows = {
        "environment": f"{told_env(config['env']['id'])}: {spec.describe()}",
        "phase": phases[config["phase"]],
        "method": f"`{config['method']['name']}`"
        + (" (while pre-training)" * (config["phase"] == "finetune")),
        "representation": f"`{config['representation']['name']}`",
        "learner": f"`{config['learner']['name']}`",
        "steps": f"{data['agent_steps']:,}" + (" over all phases" * (config["phase"] == "finetune")),
        "seed": config["seed"],
        "parameters and buffers": f"{parameters:,}",
        "machine": "; ".join(filter(None, machine)),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "command": f"`{run['command']}`" if run.get("command") else "",
        "commit of the folder it was run in": f"`{run['commit']}`" if run.get("commit") else "",
        "begun": run.get("date"),
    }
    if config["phase"] == "train":  # no method was used
        del rows["method"], rows["representation"]
    return {name: value for name, value in rows.items() if value not in ("", None)}
