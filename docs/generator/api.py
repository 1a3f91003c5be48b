"""docs/api.md: signatures and docstrings of the public names."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any

import voidrl
from generator.formatting import NOTE, plain, table, wrapped
from voidrl.config import field_docs

FIRST = ("pretrain", "finetune", "train", "evaluate", "resume", "load")  # in the order of use
AGENT = ("act",)  # the members that users call
OTHERS = {
    "Entropy": [f"voidrl.entropy:{n}" for n in ("particle_reward", "particle_entropy", "knn_distances",
                                                "random_distances", "RunningMean")],
    "Evaluation": ["voidrl.training.evaluation:Evaluation"],
    "Callbacks": [f"voidrl.training.callbacks:{n}" for n in (
        "Callback", "RunView", "StopOnPlateau", "StopAtReturn", "OptunaPruning")],
    "Components": ["voidrl.methods.base:Method", "voidrl.methods.base:Latents",
                   "voidrl.representations.base:Representation", "voidrl.representations.base:Views",
                   "voidrl.learners.base:Learner", "voidrl.types:Loss", "voidrl.types:Batch",
                   "voidrl.types:Sequence", "voidrl.types:EnvSpec", "voidrl.config:RepresentationConfig"],
    "Networks": [f"voidrl.nets:{n}" for n in ("Encoder", "mlp", "target_copy", "polyak_update")],
    "Results": ["voidrl.runs.metrics:read_metrics",
                "voidrl.report.videos.video:record", "voidrl.report.videos.video:write_video",
                "voidrl.experiments.experiment:run_experiment"],
    "Stable-Baselines3": ["voidrl.playing.sb3:APTReward",
                               "voidrl.playing.sb3:APTReplayBuffer"],
}  # fmt: skip


def api() -> str:
    """Return the page: signatures and docstrings of the public names."""
    parts = [
        NOTE,
        "# Python API\n",
        wrapped(
            "Look up a signature. `import voidrl` is fast, because torch is imported on first use. Every "
            "error that a user can cause is a `VoidrlError` that says what was given, what was expected and "
            "how to fix it."
        ),
        "## voidrl\n",
    ]
    functions = [name for name in voidrl.__all__ if inspect.isfunction(getattr(voidrl, name))]
    for name in sorted(functions, key=lambda name: (*FIRST, name).index(name)):
        parts += _documented(f"voidrl.{name}", getattr(voidrl, name))
    parts += _class("voidrl.Agent", voidrl.Agent, only=AGENT)
    for title, names in OTHERS.items():
        parts.append(f"## {title}\n")
        for name in names:
            module, _, attribute = name.partition(":")
            thing = getattr(importlib.import_module(module), attribute)
            show = _class if isinstance(thing, type) else _documented
            parts += show(f"{module}.{attribute}", thing)
    parts.append("## Errors\n")
    errors = importlib.import_module("voidrl.errors")
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, BaseException)]
    rows = ([f"`{kind.__name__}`", plain(kind.__doc__ or "")] for kind in kinds)
    parts.append(table(["voidrl.errors", "meaning"], rows) + "\n")
    return "\n".join(parts)


def _class(name: str, cls: type, only: Iterable[str] | None = None) -> list[str]:
    about = inspect.getdoc(cls) or ""
    called = [signature(name, cls)] if "\nArgs:\n" in about else []
    parts = [f"### {name}\n", *called, markdown(about)]
    if dataclasses.is_dataclass(cls):
        docs = field_docs(cls)
        parts.append("\n".join(f"- `{field}`: {plain(text)}" for field, text in docs.items()) + "\n")
    elif fields := getattr(cls, "_fields", ()):  # a NamedTuple
        parts.append(f"Fields: {', '.join(f'`{field}`' for field in fields)}.\n")
    own = [n for n in vars(cls) if n[0] != "_" and inspect.getdoc(vars(cls)[n])] if only is None else only
    for member in own:
        thing = inspect.getattr_static(cls, member, None)
        if isinstance(thing, property) or type(thing).__name__ == "cached_property":
            parts.append(f"**`{member}`** {plain(inspect.getdoc(thing) or '')}\n")
        elif isinstance(thing, classmethod | staticmethod) or inspect.isfunction(thing):
            function = getattr(cls, member)
            parts += [signature(member, function), markdown(inspect.getdoc(function) or "")]
    return parts


def _documented(name: str, function: Any) -> list[str]:
    return [f"### {name}\n", signature(name, function), markdown(inspect.getdoc(function) or "")]


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
