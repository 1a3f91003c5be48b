"""The model card of an agent, made only from its config and the records of its run."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidrl.config import LOCAL_FIELDS, PIECES, bonus_method
from voidrl.envs.ids import is_importable
from voidrl.envs.spaces import spec_from_json
from voidrl.errors import CheckpointError, RunFolderError, shown
from voidrl.runs.checkpoint import MANIFEST, read_json
from voidrl.runs.evaluations import final_evaluation
from voidrl.runs.metrics import read_metrics
from voidrl.types import EnvSpec

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from voidrl.agent import Agent
    from voidrl.training.evaluation import Evaluation

PHASES = {
    "pretrain": "pre-training without rewards",
    "finetune": "fine-tuning on a reward",
    "train": "training from scratch on a reward",
}
RUN_FIELDS = {"date", "command", "versions", "platform", "cpu", "gpus", "commit", "steps"}
RESULT_FIELDS = {"env", "mean_return", "std_return", "episodes", "human_normalized", "success_rate", "how"}
SHOWN_PARTS = 8  # of an observation, on the line with the agent's input
_MARKUP = re.compile(
    r"[\\`*_\[\]<>#|~&$]|@(?=\S)|:(?=//)|(?<=[wW]{3})\."
)  # addresses become links by themselves
_MARK = re.compile(r"\n<!-- Written by voidrl; .* sha256 ([0-9a-f]{64}) -->\n\Z")


# Records about the agent


def describe_run(path: Path, sha256: str) -> dict[str, Any]:
    """Return the records of the run in or above a folder about the agent with these weights."""
    for folder in (path, *path.absolute().parents[:2]):
        if (folder / "environment.json").is_file():
            break
    else:
        return {}
    for manifest in sorted(folder.glob(f"*/step_*/{MANIFEST}"), reverse=True):
        try:
            saved = read_json(manifest, "a manifest")
            if saved["files"]["agent.safetensors"]["sha256"] == sha256:
                return _describe(folder, saved["meta"])
        except (CheckpointError, KeyError, TypeError):
            continue  # damaged, or not a checkpoint of voidrl
    return {}


def _describe(run: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
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
    if "steps" not in meta:  # a snapshot, never evaluated, or the best agent; without the steps of its run
        return {"run": about, "results": _kept(meta)}
    results = [*_evaluated(run, meta), *_logged(run, meta)]
    return {"run": {"steps": meta["steps"], **about}, "results": results}


def _command(text: str) -> str | None:
    """Return a command line as one would type it, with the home directory shortened to `~`."""
    words = shlex.split(text)
    program = Path(words[0]).name if words else ""
    if program in ("", "-c", "-m") or "kernel_launcher" in program:  # not a command, e.g. a notebook
        return None
    home = str(Path.home())
    public = [f"~{word[len(home) :]}" if word.startswith(f"{home}/") else word for word in _public(words[1:])]
    return shlex.join([*(("python", program) if program.endswith(".py") else (program,)), *public])


def _public(words: Sequence[str]) -> Iterator[str]:
    """Leave out options of the machine and its user: `--device cuda:1`, `--set log.wandb_project=x`."""
    groups: list[list[str]] = [[]]  # an option and its values
    for word in words:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    for group in filter(None, groups):
        option, equals, value = group[0].partition("=")
        if option == "--set":
            changes = [value, *group[1:]] if equals else group[1:]
            public = [change for change in changes if not _is_local(change.partition("=")[0])]
            yield from [option, *public] if public else []
        elif option.startswith("--") and _is_local(option[2:]):
            yield from group[1:] if equals else group[2:]
        else:
            yield from group


def _is_local(name: str) -> bool:
    """Whether a field, or one of a phase of an experiment (`pretrain.device`), belongs to the machine."""
    return f".{name.replace('-', '_')}".endswith(tuple(f".{field}" for field in LOCAL_FIELDS))


def _evaluated(run: Path, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the result in the run's `evaluation.json` if it belongs to exactly this agent."""
    try:
        saved = final_evaluation(run, meta["steps"])
        if saved is None:
            return []
        agent, settings = saved["agent"], saved["settings"]
        if (agent["steps"], agent["steps_with_pretraining"]) != (meta["steps"], meta["agent_steps"]):
            return []
        length = "" if settings["steps"] is None else f" of {settings['steps']} steps"
        successes = saved["successes"]
        success = sum(successes) / len(successes) if successes else None
        how = f"by voidrl evaluate: whole episodes{length}, seed {settings['seed']}, {_policy(settings)}"
        return [_result(settings["env"], saved, success, how)]
    except (CheckpointError, RunFolderError, KeyError, TypeError):
        return []


def _policy(settings: Mapping[str, Any]) -> str:
    noise = "without exploration noise" if settings["deterministic"] else "with exploration noise"
    epsilon = settings["epsilon"]
    return f"{noise}, {f'{epsilon:.3g} of actions random' if epsilon else 'no random actions'}"


def _logged(run: Path, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the training run's own evaluation of exactly this agent."""
    try:
        rows = [row for row in read_metrics(run) if row["step"] == meta["steps"]]
        return [_in_training(next(row for row in reversed(rows) if row.get("eval/return") is not None), meta)]
    except (RunFolderError, StopIteration, KeyError, TypeError):
        return []


def _kept(meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the evaluation of an agent that fine-tuning kept as its best."""
    try:
        return [_in_training(meta["evaluation"], meta)]
    except (KeyError, TypeError):
        return []


def _in_training(row: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    policy = _policy({"deterministic": True, "epsilon": meta["config"]["log"]["eval_epsilon"]})
    how = f"during training, after step {row['step']}: whole episodes, {policy}"
    numbers = {"mean_return": row["eval/return"], "std_return": row["eval/return_std"]}
    numbers |= {"human_normalized": row.get("eval/human_normalized"), "episodes": row["eval/episodes"]}
    return _result(meta["config"]["env"]["id"], numbers, row.get("eval/success"), how)


def result_from(agent: Agent, evaluation: Evaluation) -> dict[str, Any]:
    """Return the entry for an evaluation passed in by the user."""
    numbers = {
        "mean_return": evaluation.mean_return,
        "std_return": evaluation.metrics()["eval/return_std"],
        "episodes": len(evaluation.returns),
        "human_normalized": evaluation.human_normalized,
    }
    how = "by voidrl.evaluate: whole episodes"
    return _result(agent.config.env.id, numbers, evaluation.success_rate, how)


def _result(env: str, numbers: Mapping[str, Any], success: float | None, how: str) -> dict[str, Any]:
    names = ("mean_return", "std_return", "episodes", "human_normalized")
    return {"env": env, **{name: numbers[name] for name in names}, "success_rate": success, "how": how}


def require_about(about: dict[str, Any]) -> dict[str, Any]:
    """Return the records of `describe_run` and `result_from`, refusing what they could not have written."""
    run, results = about.get("run", {}), about.get("results", [])
    _require(set(about) <= {"run", "results"}, "about.keys", sorted(about), "run and results")
    _require(isinstance(run, dict) and set(run) <= RUN_FIELDS, "about.run", run, "what a run records")
    for name in ("date", "command", "platform", "cpu", "commit"):
        _require(isinstance(run.get(name, ""), str | None), f"about.run.{name}", run.get(name), "a text")
    steps, gpus, versions = run.get("steps", 0), run.get("gpus", []), run.get("versions", {})
    _require(_is_number(steps) and isinstance(steps, int), "about.run.steps", steps, "a whole number")
    listed = isinstance(gpus, list) and all(isinstance(name, str) for name in gpus)
    _require(listed, "about.run.gpus", gpus, "a list of names")
    named = isinstance(versions, dict) and all(isinstance(each, str | None) for each in versions.values())
    _require(named, "about.run.versions", versions, "versions by name")
    _require(isinstance(results, list), "about.results", results, "a list of results")
    for result in results:
        _require(_is_result(result), "about.results", result, "results of evaluations")
    return about


def _is_result(result: object) -> bool:
    """Whether an evaluation could have this result."""
    if not isinstance(result, dict) or set(result) != RESULT_FIELDS:
        return False
    texts = all(isinstance(result[name], str) for name in ("env", "how"))
    numbers = all(_is_number(result[name]) for name in ("mean_return", "std_return", "episodes"))
    shares = [result[name] for name in ("success_rate", "human_normalized")]
    if not texts or not numbers or not all(share is None or _is_number(share) for share in shares):
        return False
    counted = isinstance(result["episodes"], int) and result["episodes"] >= 0
    return counted and result["std_return"] >= 0 and 0 <= (result["success_rate"] or 0) <= 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _require(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise CheckpointError(f"{name} = {shown(value)} cannot be used: expected {expected}")


# Text of others in Markdown


def one_line(text: object) -> str:
    """Text without line breaks, which could begin a block or end the front matter, or control characters."""
    spaced = "".join(each if each.isprintable() else " " for each in str(text))
    return " ".join(spaced.split())


def code(text: object) -> str:
    """Text as inline code, whatever backticks it has."""
    line = one_line(text) or "(empty)"
    fence = "`"
    while fence in line:
        fence += "`"
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{padding}{line}{padding}{fence}"


def code_cell(text: object) -> str:
    """Text as inline code in a table, where a backslash before a separator cannot be written."""
    line = one_line(text)
    return plain(line) if "|" in line and "\\" in line else code(line).replace("|", "\\|")


def plain(text: object) -> str:
    """Text that Markdown shows literally: no markup, no HTML, no links."""
    return _MARKUP.sub(r"\\\g<0>", one_line(text))


# The page


def render(data: Mapping[str, Any], *, parameters: int, license: str | None, repo_id: str | None) -> str:
    """Return the card for the contents of a `config.json`, with a mark that `is_edited` recognizes.

    Needs the extra `hub`.
    """
    from huggingface_hub import ModelCard, ModelCardData

    config, spec = data["config"], spec_from_json(data["spec"])
    run, results = data["about"].get("run", {}), data["about"].get("results", [])
    env, phase, pieces = config["env"]["id"], config["phase"], [config[kind]["name"] for kind in PIECES]
    wrappers, importable = config["env"].get("wrappers", []), is_importable(env)
    env_names = [env.partition("?")[0]] if importable else []
    algorithm = config["learner" if phase == "train" else "method"]["name"]
    card_data = ModelCardData(
        library_name="voidrl",
        pipeline_tag="reinforcement-learning",
        license=license,
        tags=["reinforcement-learning", "voidrl", *map(one_line, (*env_names, algorithm))],
        model_name=one_line(repo_id or (env_names or ["agent"])[0]).rpartition("/")[2],
        eval_results=_eval_results(results[0]) if results else None,
    )
    template = resources.files("voidrl.sharing").joinpath("templates/model_card.md").read_text("utf-8")
    card = ModelCard.from_template(
        card_data,
        template_str=template,
        title=plain(algorithm.rpartition(":")[2]),
        env_title=plain(env_names[0]) if importable else "a custom environment",
        env_description=describe_env(env),
        env_argument=_literal(env) if importable else _function(env) or "make_env",
        place=code(env) if importable else "a custom environment",
        importable=importable,
        phase=phase,
        bonus=bool(bonus_method(config)),
        method=code(config["method"]["name"]),
        agent_steps=data["agent_steps"],
        run_steps=run.get("steps"),
        repo_id=repo_id,
        trust=repo_id is not None and bool(wrappers or any(":" in name for name in pieces)),
        external=", ".join(code(name) for name in (*env_names, *wrappers, *pieces) if ":" in name),
        observation=_observation(spec),
        spec=spec.describe(),
        results=[_cells(result) for result in results],
        any_success=any(result["success_rate"] is not None for result in results),
        any_human=any(result["human_normalized"] is not None for result in results),
        training=_training(data, run, spec, parameters),
    )
    text = f"{card}\n"
    return f"{text}\n<!-- Written by voidrl; edited cards are kept. sha256 {_digest(text)} -->\n"


def _observation(spec: EnvSpec) -> str:
    """The input of `agent.act`, on one line of a Python comment."""
    stack = () if spec.frame_stack == 1 else (spec.frame_stack,)
    if not spec.parts:
        kind = "uint8" if spec.pixels else "float32"
        return f"{kind} of shape {(*stack, *spec.raw_shape)}, or a batch"
    phrases = []
    for part in spec.parts[:SHOWN_PARTS]:
        what = {"image": f"{part.dtype} image", "mask": "mask of actions"}.get(part.kind, "numbers")
        if part.sizes:
            what = f"choices of up to {max(part.sizes)}"
        where = f"{_literal(part.name)}: " if part.path else ""
        phrases.append(f"{where}{what} of shape {(*stack, *part.shape)}")
    if len(spec.parts) > SHOWN_PARTS:
        phrases.append(f"and {len(spec.parts) - SHOWN_PARTS} more")
    seen = "; ".join(phrases)
    given = spec.masked and not any(part.kind == "mask" for part in spec.parts)
    return f"{seen}; or a batch{'; and action_mask=…' if given else ''}"


def is_edited(text: str) -> bool:
    """Whether a card was edited after `render` wrote it."""
    mark = _MARK.search(text)
    return mark is None or mark[1] != _digest(text[: mark.start()])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def describe_env(env: str, quote: Callable[[str], str] = code) -> str:
    """Return a description of the environment that is true on any machine."""
    if is_importable(env):
        return quote(env)
    name = _function(env)
    return f"a function `{name}` in the author's script" if name else "a function in the author's script"


def _literal(env: str) -> str:
    """The id as a Python string, on one line."""
    return json.dumps(env, ensure_ascii=not env.isprintable())


def _function(env: str) -> str | None:
    """Return the name of a function that cannot be imported; None for lambdas and partials."""
    name = env.partition("?")[0].rpartition(":")[2].rpartition(".")[2]
    return name if name.isidentifier() else None


def _eval_results(result: Mapping[str, Any]) -> list[EvalResult]:
    from huggingface_hub import EvalResult

    env, episodes = result["env"], result["episodes"]
    importable = is_importable(env)
    metrics = {"mean_reward": ("mean return", result["mean_return"])}
    if result["success_rate"] is not None:
        metrics["success_rate"] = ("success", result["success_rate"])
    return [
        EvalResult(
            task_type="reinforcement-learning",
            task_name="reinforcement-learning",
            dataset_type=one_line(env.partition("?")[0]) if importable else "custom",
            dataset_name=one_line(env) if importable else "a custom environment",
            metric_type=metric,
            metric_name=f"{name} over {episodes} episodes",
            metric_value=value,
            verified=False,
        )
        for metric, (name, value) in metrics.items()
    ]


def _cells(result: Mapping[str, Any]) -> dict[str, Any]:
    """Format one result for the table."""
    cells = {name: f"{result[name]:.6g}" for name in ("mean_return", "std_return")}
    for name in ("success_rate", "human_normalized"):
        cells[name] = "" if result[name] is None else f"{result[name]:.1%}"
    env = describe_env(result["env"], code_cell)
    return {**result, **cells, "env": env, "how": plain(result["how"])}


def _training(
    data: Mapping[str, Any], run: Mapping[str, Any], spec: EnvSpec, parameters: int
) -> dict[str, str]:
    """Return the rows of the training table; unknown values are left out."""
    config, versions = data["config"], run.get("versions") or {"voidrl": data["voidrl"]}
    finetuned = config["phase"] == "finetune"
    machine = [*run.get("gpus", []), run.get("cpu"), run.get("platform")]
    bonus = bonus_method(config)
    role = " (during pre-training)" if finetuned else ""
    if bonus:
        role = " (next to the task's reward)"
    rows = {
        "environment": f"{describe_env(config['env']['id'], code_cell)}: {spec.describe()}",
        "phase": PHASES[config["phase"]] + (f" + {code_cell(bonus)}" if bonus else ""),
        "method": f"{code_cell(config['method']['name'])}{role}",
        "representation": code_cell(config["representation"]["name"]),
        "learner": code_cell(config["learner"]["name"]),
        "steps": f"{data['agent_steps']:,}{' over all phases' * finetuned}",
        "seed": config["seed"],
        "parameters and buffers": f"{parameters:,}",
        "machine": plain("; ".join(filter(None, machine))),
        "versions": plain(", ".join(f"{name} {version}" for name, version in versions.items() if version)),
        "command": code_cell(run["command"]) if run.get("command") else "",
        "Git commit": code_cell(run["commit"]) if run.get("commit") else "",
        "started": plain(run.get("date") or ""),
    }
    if config["phase"] == "train" and not bonus:
        del rows["method"]
        if not config["representation"]["auxiliary"] and config["share_encoder"] == "nothing":
            del rows["representation"]  # which was not used
    return {name: str(value) for name, value in rows.items() if value != ""}
