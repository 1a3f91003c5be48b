"""Run folders written by hand, without training: for the tests of the report and for its benchmark."""

import hashlib
import json

import numpy as np
from safetensors.numpy import save

from voidrl.config import Config, merge, to_json
from voidrl.report.contents import Report
from voidrl.runs.checkpoint import FORMAT, seal
from voidrl.training.positions import Positions

DATE = "2026-11-15T12:00:00+00:00"
MAZE = "voidrl/PixelMaze-v0?size=5&image_size=36"


def write_run(
    folder,
    *,
    env=MAZE,
    phase="pretrain",
    method="apt",
    seed=1,
    steps=100,
    rows=(),
    evaluation=None,
    visits=None,
    positions=(),
    error=None,
    status=None,
    machine=None,
    **settings,
):
    """A run with these rows, `{"step": …}` each; `settings` by dotted names with `__` for dots.

    Its state is `failed` with an error, `done` after its last step, and else that of a killed run.
    """
    folder.mkdir(parents=True)
    rows = [*rows]
    reached = max((row.get("step", 0) for row in rows), default=0)
    state = "failed" if error else "done" if reached >= steps else "running"
    status = {"state": state, "steps": reached, "total_steps": steps, "error": error, **(status or {})}
    write_json(folder / "status.json", {**status, "heartbeat": DATE})
    changes = {name.replace("__", "."): value for name, value in settings.items()}
    named = {"env.id": env, "phase": phase, "seed": seed, "steps": steps, "method": {"name": method}}
    config = merge(to_json(Config()), named, changes)
    write_json(folder / "config.json", config)
    write_json(folder / "environment.json", {**MACHINE, **(machine or {})})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if evaluation is not None:
        write_evaluation(folder, evaluation)
    if visits is not None:
        write_checkpoint(folder, steps, visits, positions=positions)
    return folder


MACHINE = {
    "date": DATE,
    "command": "voidrl pretrain somewhere --seed 1",
    "versions": {"python": "3.12.1", "voidrl": "0.1.0", "torch": "2.13.0", "numpy": "2.4.0"},
    "platform": "Linux",
    "cpu": {"model": "Slow CPU", "count": 2},
    "gpus": [],
    "git": {"commit": "0123456789abcdef"},
}


def write_json(path, data):
    path.write_text(json.dumps(data))


def write_evaluation(folder, returns, successes=None, steps=10**9):
    """An evaluation as `voidrl evaluate RUN --json` prints it."""
    agent = {"env": "x", "phase": "train", "method": "apt", "seed": 1, "steps": steps}
    mean = sum(returns) / len(returns)
    record = {"agent": agent, "settings": {}, "mean_return": mean, "returns": returns, "successes": successes}
    write_json(folder / "evaluation.json", record)


def write_checkpoint(folder, step, visits, version=FORMAT, positions=()):
    """The two files of a checkpoint that a report reads."""
    path = folder / "checkpoints" / f"step_{step:012d}"
    path.mkdir(parents=True)
    counted = Positions()
    counted.add(np.array(positions, np.float64).reshape(-1, 2))
    state = {name: tensor.numpy() for name, tensor in counted.state().items()}
    data = save({"visits": np.asarray(visits, np.int64), **state})
    (path / "loop.safetensors").write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "tag": None}
    manifest = {"format": version, "step": step, "meta": {}, "files": {"loop.safetensors": entry}}
    write_json(path / "manifest.json", {**manifest, "sha256": seal(manifest)})
    return path


def write_experiment(root, cells, **about):
    """The experiment.json of `voidrl experiment`; `cells` are dictionaries with at least a folder."""
    root.mkdir(parents=True, exist_ok=True)
    usual = {"task": MAZE, "label": "apt", "method": "apt", "seed": 1, "phase": "pretrain", "source": None}
    usual |= {"steps": 100, "protocol_steps": 100}
    whole = {"format": 1, "name": "own", "title": "An own experiment", "about": "", "published": None}
    whole |= {"command": "voidrl experiment own"}
    write_json(root / "experiment.json", {**whole, **about, "cells": [usual | cell for cell in cells]})


def report_of(*paths):
    return Report.read(paths, lambda text: None)
