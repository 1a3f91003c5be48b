"""Curves as the page's script reads them: small, with every axis of steps written once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voidrl.report.curves import SHARES, Curve, arm_curve, group_of, metrics_of, name_of, points_for
from voidrl.report.formatting import count
from voidrl.report.groups import Arm, stages_of

DIGITS = 5  # a readout shows three or four


def chart_data(arms: Sequence[Arm]) -> dict[str, Any]:
    """`{grids, metrics, panels, points, spans}`; a panel is an environment in a stage."""
    points = points_for(arms)
    grids: dict[tuple[float, ...], int] = {}
    panels = []
    spans: list[float] = []
    for stage, by_env in stages_of(arms).items():
        for found in by_env.values():
            curves: dict[str, list[dict[str, Any]]] = {}
            for metric in metrics_of(found):
                for number, arm in enumerate(found):
                    curve = arm_curve(arm, metric, points)
                    if curve is not None:
                        curves.setdefault(metric, []).append(_packed(number, curve, len(arm.runs), grids))
                        spans += [curve.span] if curve.span is not None else []
            panels.append(
                {
                    "stage": stage,
                    "env": found[0].env_name,
                    "arms": [
                        {
                            "label": arm.label,
                            "style": arm.style,
                            "runs": len(arm.runs),
                            "seeds": len(arm.seeds),
                        }
                        for arm in found
                    ],
                    "curves": curves,
                }
            )
    names = metrics_of(arms)
    metrics = {
        name: {"name": name_of(name), "group": group_of(name), "share": name in SHARES} for name in names
    }
    return {"grids": [*grids], "metrics": metrics, "panels": panels, "thinned": thinned(points, spans)}


def thinned(points: int, spans: Sequence[float]) -> str:
    """What was done to curves with many rows, in a sentence; empty where nothing was."""
    if not spans:
        return ""
    low, high = count(min(spans)), count(max(spans))
    wide = low if low == high else f"{low} to {high}"
    return (
        f"A run with more than {points} rows is drawn as the means of its rows over equal spans of steps, "
        f"here of {wide} steps: what happened within a span does not show."
    )


def _packed(arm: int, curve: Curve, runs: int, grids: dict[tuple[float, ...], int]) -> dict[str, Any]:
    steps = tuple(int(step) for step in np.rint(curve.steps))
    packed: dict[str, Any] = {
        "arm": arm,
        "grid": grids.setdefault(steps, len(grids)),
        "mean": rounded(curve.mean),
        "runs": int(curve.runs[0]) if (curve.runs == curve.runs[0]).all() else curve.runs.tolist(),
    }
    if runs > 1:
        packed |= {"low": rounded(curve.low), "high": rounded(curve.high)}
    return packed


def rounded(values: np.ndarray) -> list[float | int]:
    """To five significant digits, whole numbers without a point."""
    numbers: list[float | int] = []
    for value in values.tolist():
        number = float(f"{value:.{DIGITS}g}")
        numbers.append(int(number) if number.is_integer() and abs(number) < 1e15 else number)
    return numbers
