"""`voidrl demo`: the whole idea in minutes on two CPU cores, from pixels.

A random agent and APT explore the same maze for the same number of steps, without any reward. Then a reward
appears at one distant cell: APT's agent and a new one learn to reach it, again for the same number of steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voidrl import api, checkpoint
from voidrl.envs import parse_id
from voidrl.envs.maze import PixelMazeVector
from voidrl.metrics import read_metrics
from voidrl.presets import DEMO_ENV, DEMO_GOAL

PRETRAIN_STEPS = 16_000
FINETUNE_STEPS = 8_000
TASK = f"{DEMO_ENV}&{DEMO_GOAL}"
Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class DemoResult:
    """One seed's outcome."""

    seed: int
    walls: np.ndarray  # (size, size)
    start_cell: tuple[int, int]
    goal_cell: tuple[int, int]
    random_visits: np.ndarray  # (size, size)
    apt_visits: np.ndarray
    random_coverage: Curve
    apt_coverage: Curve
    finetuned_success: Curve
    scratch_success: Curve

    def summary(self) -> dict[str, float]:
        """The four numbers of the table."""
        return {
            "coverage_random": self.random_coverage[-1][1],
            "coverage_apt": self.apt_coverage[-1][1],
            "success_finetuned": self.finetuned_success[-1][1],
            "success_scratch": self.scratch_success[-1][1],
        }


def run_demo(
    out: str | Path, *, seeds: Sequence[int] = (2,), scale: float = 1.0, device: str = "auto"
) -> list[DemoResult]:
    """Run all four parts for each seed under `out`, print the table, draw `demo.png`."""
    from voidrl.report.demo_figure import draw, import_pyplot

    import_pyplot()  # a missing package is better known before than after
    out = Path(out)
    steps, task_steps = max(1, round(PRETRAIN_STEPS * scale)), max(1, round(FINETUNE_STEPS * scale))
    results = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as fast as two for networks this small, and sums do not depend on the machine
    try:
        for seed in seeds:
            runs = out / f"seed{seed}"
            _run_parts(runs, seed, steps, task_steps, device)
            results.append(read_demo(runs, seed))
    finally:
        torch.set_num_threads(threads)
    numbers = {"steps": steps, "task_steps": task_steps, "seeds": {r.seed: r.summary() for r in results}}
    (out / "demo.json").write_text(json.dumps(numbers, indent=1) + "\n")
    picture = draw(results, out / "demo.png")
    print(table(results, steps, task_steps))
    print(f"\npicture: {picture}")
    return results


def _run_parts(runs: Path, seed: int, steps: int, task_steps: int, device: str) -> None:
    shared: dict[str, Any] = {"preset": "maze-demo", "seed": seed, "device": device, "overwrite": True}
    on_task = {"log.eval_every_steps": max(1, task_steps // 10), "updates_per_step": 0.5}
    api.pretrain(DEMO_ENV, "random", steps=steps, out=runs / "random", **shared)
    api.pretrain(DEMO_ENV, "apt", steps=steps, out=runs / "apt", **shared)
    tuned = runs / "finetuned"
    api.finetune(
        runs / "apt", TASK, steps=task_steps, out=tuned, config=on_task, device=device, overwrite=True
    )
    api.train(TASK, steps=task_steps, out=runs / "scratch", config=on_task, **shared)


def read_demo(out: Path, seed: int) -> DemoResult:
    """The outcome as the four run folders hold it."""
    maze = PixelMazeVector(num_envs=1, **parse_id(TASK)[1])
    size = len(maze.walls)

    def visits(run: str) -> np.ndarray:
        saved = checkpoint.latest(out / run / "checkpoints", print).tensors("loop.safetensors")["visits"]
        return torch.nn.functional.pad(saved, (0, size * size - len(saved))).numpy().reshape(size, size)

    def curve(run: str, key: str, scale: float = 1.0) -> Curve:
        return [(row["step"], row[key] * scale) for row in read_metrics(out / run) if key in row]

    share = 1 / maze.num_open_cells
    return DemoResult(
        seed=seed,
        walls=maze.walls,
        start_cell=_pair(maze.start_cell),
        goal_cell=_pair(maze.goal_cell),
        random_visits=visits("random"),
        apt_visits=visits("apt"),
        random_coverage=curve("random", "coverage/cells", share),
        apt_coverage=curve("apt", "coverage/cells", share),
        finetuned_success=curve("finetuned", "eval/success"),
        scratch_success=curve("scratch", "eval/success"),
    )


def table(results: Sequence[DemoResult], steps: int, task_steps: int) -> str:
    """What a newcomer reads first: means over the seeds, with the range where there are several."""
    columns = {name: [r.summary()[name] for r in results] for name in results[0].summary()}

    def percent(name: str) -> str:
        values = columns[name]
        spread = f" ({min(values):.0%} to {max(values):.0%})" if len(values) > 1 else ""
        return f"{np.mean(values):.0%}{spread}"

    ratio = np.mean(columns["coverage_apt"]) / np.mean(columns["coverage_random"])
    rows = [
        ("", "random", "APT"),
        (
            f"maze seen in {steps} steps",
            percent("coverage_random"),
            f"{percent('coverage_apt')}, {ratio:.1f}×",
        ),
        ("", "from scratch", "fine-tuned from APT"),
        (f"goal reached after {task_steps} steps", percent("success_scratch"), percent("success_finetuned")),
    ]
    return "\n" + "\n".join(f"{a:<32}{b:<22}{c}".rstrip() for a, b, c in rows)


def _pair(cell: Any) -> tuple[int, int]:
    return int(cell[0]), int(cell[1])
