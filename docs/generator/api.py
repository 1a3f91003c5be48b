"""docs/api/: signatures and docstrings of the public names, by topic."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from generator.formatting import NOTE, plain, table
from voidrl.config import field_docs

PAGES = {  # by page: its first sentence, and by heading the names whose documentation it has
    "training": (
        "Train, fine-tune, evaluate and resume from Python.",
        {
            "Functions": [f"voidrl:{n}" for n in (
                "pretrain", "finetune", "train", "evaluate", "resume", "load")],
            "Agents": ["voidrl:Agent"],
            "Callbacks": [f"voidrl.training.callbacks:{n}" for n in (
                "Callback", "RunView", "StopOnPlateau", "StopAtReturn", "OptunaPruning")],
        },
    ),
    "pieces": (
        "Write a method, representation or learner, or use APT's reward in another library.",
        {
            "Methods": ["voidrl.methods.base:Method", "voidrl.methods.base:Latents"],
            "Representations": [f"voidrl.representations.base:{n}" for n in ("Representation", "Views")],
            "Learners": ["voidrl.learners.base:Learner"],
            "Data": [f"voidrl.types:{n}" for n in ("Loss", "Batch", "Sequence")],
            "Networks": [f"voidrl.nets:{n}" for n in ("Encoder", "mlp", "target_copy", "polyak_update")],
            "Entropy": [f"voidrl.entropy:{n}" for n in (
                "particle_reward", "particle_entropy", "knn_distances", "RunningMean")],
            "Stable-Baselines3": ["voidrl.playing.sb3:APTReward", "voidrl.playing.sb3:APTReplayBuffer"],
        },
    ),
    "environments": (
        "Make an environment as agents see it, and read its spaces.",
        {"Environments": ["voidrl:make_env", "voidrl.types:EnvSpec"]},
    ),
    "results": (
        "Measure, report, record, export and share what was trained.",
        {
            "Measuring": ["voidrl.training.evaluation:Evaluation", "voidrl:probe"],
            "Reporting": ["voidrl:write_report", "voidrl.runs.metrics:read_metrics",
                          "voidrl.experiments.experiment:run_experiment"],
            "Videos": ["voidrl.report.videos.video:record", "voidrl.report.videos.video:write_video"],
            "Sharing": [f"voidrl:{n}" for n in ("save_pretrained", "push_to_hub", "from_pretrained")],
            "Exporting": ["voidrl:export_policy", "voidrl:export_data"],
        },
    ),
}  # fmt: skip
TYPES = {"Env": "training.build", "Steps": "api", "Overrides": "training.build"}
MEMBERS = {  # of classes with more members than most users call or override
    "Agent": ("act",),
    "StopOnPlateau": (), "StopAtReturn": (), "OptunaPruning": (), "APTReward": (), "APTReplayBuffer": (),
    "RunningMean": (), "Evaluation": ("mean_return", "success_rate", "human_normalized"),
    "EnvSpec": ("discrete", "action_dim", "obs_shape"),
    "Method": ("check", "reward", "losses", "after_update", "observe", "set_progress", "sample_skill",
               "select_skill", "make_critic"),
    "Latents": ("z", "z_next"),
    "Representation": ("make_encoder", "encode", "loss", "after_update", "size_heads"),
    "Views": ("obs", "next_obs", "sequence", "later", "future"),
    "Learner": ("act", "q", "losses", "after_update", "update_periods", "groups", "features", "set_progress"),
}  # fmt: skip
FIELDS = {  # of a dataclass with more fields than methods read
    "EnvSpec": ("frame_shape", "pixels", "frame_stack", "num_actions", "action_low", "action_high",
                "num_values", "masked"),
}  # fmt: skip
BRIEF = ("particle_entropy", "RunningMean")  # of whose docstrings the first paragraph is enough
NOT_RAISED = ("CaptureError", "OutputError", "PipeClosedError", "StoppedBySignal")  # by the functions here
REGISTER = """\
## Registering pieces from a package

A package registers methods, representations and learners as classes, and environments as a module, or a
function, that registers ids with Gymnasium. `voidrl list` shows them, and commands take their names. A name
of voidrl's own wins. Runs record `module:Class`.

```toml
# plugin/pyproject.toml
[project.entry-points."voidrl.methods"]
mine = "my_package.methods:Mine"

[project.entry-points."voidrl.representations"]
other = "my_package.representations:Other"

[project.entry-points."voidrl.learners"]
shallow = "my_package.learners:Shallow"

[project.entry-points."voidrl.environments"]
worlds = "my_package.worlds:register"
```
"""


def pages() -> dict[str, Callable[[], str]]:
    """The function that makes each page, by its path in docs/."""
    return {f"api/{name}.md": partial(_page, name, *page) for name, page in PAGES.items()}


def _page(name: str, about: str, sections: Mapping[str, Sequence[str]]) -> str:
    """Return a page: signatures and docstrings of public names."""
    others = ", ".join(f"[{other}]({other}.md)" for other in PAGES if other != name)
    parts = [NOTE, f"# Python API: {name}\n", f"{about} More: {others}.\n"]
    for title, names in sections.items():
        parts.append(f"## {title}\n")
        for path in names:
            module, _, attribute = path.partition(":")
            thing = getattr(importlib.import_module(module), attribute)
            show = _class if isinstance(thing, type) else _documented
            parts += show(f"{module}.{attribute}", thing)
        if (name, title) == ("training", "Functions"):
            parts.append(_types())
    if name == "training":
        parts.append(_errors())
    if name == "pieces":
        parts.append(REGISTER)
    return "\n".join(parts)


def _types() -> str:
    rows = []
    for name, module in TYPES.items():
        source = inspect.getsource(importlib.import_module(f"voidrl.{module}"))
        found = re.search(rf'^{name} = (.+)\n"""((?:.|\n)+?)"""', source, re.MULTILINE)
        assert found is not None, f"voidrl.{module}.{name} has no docstring"
        rows.append([f"`voidrl.{name}`", f"`{found[1]}`", plain(found[2])])
    return table(["type", "definition", "meaning"], rows) + "\n"


def _errors() -> str:
    errors = importlib.import_module("voidrl.errors")
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, BaseException)]
    rows = ([f"`{e.__name__}`", plain(e.__doc__ or "")] for e in kinds if e.__name__ not in NOT_RAISED)
    return (
        "## Errors\n\nEvery error that a user can cause is a `VoidrlError` that says what was given, what "
        f"was expected and how to fix it.\n\n{table(['voidrl.errors', 'meaning'], rows)}\n"
    )


def _class(name: str, cls: type) -> list[str]:
    about = _doc(cls)
    called = [signature(name, cls)] if "\nArgs:\n" in about else []
    parts = [f"### {name}\n", *called, markdown(about)]
    if dataclasses.is_dataclass(cls):
        docs = field_docs(cls)
        parts.append(
            "\n".join(
                f"- `{field}`: {plain(text)}"
                for field, text in docs.items()
                if field in FIELDS.get(cls.__name__, docs)
            )
            + "\n"
        )
    elif fields := getattr(cls, "_fields", ()):  # a NamedTuple
        parts.append(f"Fields: {', '.join(f'`{field}`' for field in fields)}.\n")
    own = [n for n in vars(cls) if n[0] != "_" and inspect.getdoc(vars(cls)[n])]
    for member in MEMBERS.get(cls.__name__, own):
        thing = inspect.getattr_static(cls, member, None)
        if isinstance(thing, property) or type(thing).__name__ == "cached_property":
            parts.append(f"**`{member}`** {plain(inspect.getdoc(thing) or '')}\n")
        elif isinstance(thing, classmethod | staticmethod) or inspect.isfunction(thing):
            function = getattr(cls, member)
            parts += [signature(member, function), markdown(inspect.getdoc(function) or "")]
    return parts


def _documented(name: str, function: Any) -> list[str]:
    return [f"### {name}\n", signature(name, function), markdown(_doc(function))]


def _doc(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    return text.partition("\n\n")[0] if thing.__name__ in BRIEF else text


def signature(name: str, function: Any) -> str:
    """Return the signature as code, on one line if it fits."""
    given = inspect.signature(function)
    words, star = [], False
    for parameter in given.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        kind = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        kind = kind.removesuffix(" | None") if parameter.default is None else kind
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        words.append(str(parameter).partition(":")[0].partition("=")[0].strip() + kind + default)
    says = given.return_annotation
    back = "" if says is given.empty or isinstance(function, type) else f" -> {says}"
    line = f"{name}({', '.join(words)}){back}"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){back}"
    return f"```text\n{line}\n```\n"


def markdown(docstring: str) -> str:
    """Convert a Google-style docstring to Markdown, with `Args:` as a list."""
    text, *sections = re.split(r"^(Args|Returns|Raises):\n", docstring, flags=re.MULTILINE)
    parts = [text.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        body = textwrap.dedent(body).strip()
        if title != "Args":
            parts.append(f"{title}: {body}")
            continue
        items = re.split(r"\n(?=\w)", body)
        parts.append("\n".join(re.sub(r"^(\w+): ", r"- `\1`: ", " ".join(item.split())) for item in items))
    return "\n\n".join(part.replace("<", "\\<") if "`" not in part else part for part in parts) + "\n"
