"""`voidrl demo`: the whole idea in minutes on two CPU cores, from pixels.

A random agent and APT explore the same maze for the same number of steps, without any reward. Then a reward
appears at one far cell: APT's agent and a new one learn to reach it, again for the same number of steps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voidrl import api, checkpoint
from voidrl.envs.maze import PixelMazeVector
from voidrl.envs.vector import parse_id
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


def run_demo(out: str | Path, *, seed: int = 1, scale: float = 1.0, device: str = "auto") -> DemoResult:
    """Run all four parts under `out`, print the table, draw `demo.png`; parts done before are done again."""
    from voidrl.report.demo_figure import draw

    out = Path(out)
    steps, task_steps = max(1, round(PRETRAIN_STEPS * scale)), max(1, round(FINETUNE_STEPS * scale))
    shared: dict[str, Any] = {"preset": "maze-demo", "seed": seed, "device": device, "overwrite": True}
    api.pretrain(DEMO_ENV, "random", steps=steps, out=out / "random", **shared)
    api.pretrain(DEMO_ENV, "apt", steps=steps, out=out / "apt", **shared)
    evaluated = {"log.eval_every_steps": max(1, task_steps // 10), "updates_per_step": 0.5}
    api.finetune(
        out / "apt",
        TASK,
        steps=task_steps,
        out=out / "finetuned",
        config=evaluated,
        device=device,
        overwrite=True,
    )
    api.train(TASK, steps=task_steps, out=out / "scratch", config=evaluated, **shared)
    result = read_demo(out, seed)
    (out / "demo.json").write_text(
        json.dumps(result.summary() | {"seed": seed, "steps": steps, "task_steps": task_steps})
    )
    picture = draw([result], out / "demo.png")
    print(table(result, steps, task_steps))
    print(f"\npicture: {picture}")
    return result


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


def table(result: DemoResult, steps: int, task_steps: int) -> str:
    """What a newcomer reads first."""
    s = result.summary()
    seen, scratch, tuned = s["coverage_random"], s["success_scratch"], s["success_finetuned"]
    rows = [
        ("", "random", "APT", "ratio"),
        (
            f"maze seen in {steps} steps",
            f"{seen:.0%}",
            f"{s['coverage_apt']:.0%}",
            f"{s['coverage_apt'] / seen:.1f}×",
        ),
        ("", "scratch", "fine-tuned", ""),
        (f"goal reached after {task_steps} steps", f"{scratch:.0%}", f"{tuned:.0%}", ""),
    ]
    return "\n" + "\n".join(f"{a:<32}{b:>10}{c:>12}{d:>8}".rstrip() for a, b, c, d in rows)


def _pair(cell: Any) -> tuple[int, int]:
    return int(cell[0]), int(cell[1])
