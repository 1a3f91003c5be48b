"""Markdown tables of representations by game, from what `atari_probe.py` wrote.

    python benchmarks/atari_probe_table.py results/atari/probe.json

Representations are ordered by the share of the reward's variance that the player's cell explains, the mean
over games. Only those that were probed on all games of the file have a mean.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

POOLS = ("256", "4096")  # the smallest and the largest: lines of more would be too long
REWARD = {
    "own_share": "Share of the reward's variance that the player's cell explains (η² above chance)",
    "own_correlation": "Rank correlation of the reward with the rarity of the player's cell",
    "other_share": "Share of the reward's variance that everything else explains",
    "noise": "Noise between batches: deviation of a state's reward over the deviation between states",
}
PROBES = {
    "r2_own": "R² of linear probes of what the player controls",
    "r2_other": "R² of linear probes of everything else",
    "reward_f1": "F1 of linear probes of the task's reward",
}


def name_of(row: dict[str, Any]) -> str:
    """The representation, and the layer unless it is z."""
    return row["representation"] + ("" if row["space"] in ("z", "pixels") else f", {row['space']}")


def value_of(row: dict[str, Any], key: str, pool: str) -> float:
    """A number of a row, NaN where it was not measured."""
    found = row["pools"][pool][key] if key in REWARD else row[key]
    return float("nan") if found is None else float(found)


def mean_of(by_game: dict[str, dict[str, Any]], games: list[str], key: str, pool: str) -> float:
    """The mean over games, NaN if one is missing; games on which nobody has a number do not count."""
    if not all(game in by_game for game in games):
        return float("nan")
    values = [value_of(by_game[game], key, pool) for game in games]
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")


def number(value: float) -> str:
    """Two digits, with a minus sign; a dash where there is none."""
    return f"{value:.2f}".replace("-", "−") if np.isfinite(value) else "–"


def tables(rows: list[dict[str, Any]]) -> str:
    """One table for each measure."""
    games = list(dict.fromkeys(row["game"] for row in rows))
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(name_of(row), {})[row["game"]] = row
    means = {name: mean_of(found, games, "own_share", POOLS[-1]) for name, found in by_name.items()}
    order = sorted(by_name, key=lambda name: -means[name] if np.isfinite(means[name]) else 1)
    lines: list[str] = []
    for key, title in (REWARD | PROBES).items():
        pools = POOLS if key in REWARD else POOLS[:1]
        told = f", with a pool of {' → '.join(POOLS)}" if key in REWARD else ""
        lines += [f"{title}{told}:", ""]
        lines += [f"| | z | {' | '.join(games)} | mean |", "|" + "---|" * (len(games) + 3)]
        for name in order:
            found = by_name[name]
            cells = [str(next(iter(found.values()))["dim"])]
            for game in games:
                values = (
                    [number(value_of(found[game], key, pool)) for pool in pools] if game in found else ["–"]
                )
                cells.append(" → ".join(values))
            cells.append(" → ".join(number(mean_of(found, games, key, pool)) for pool in pools))
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("json", type=Path)
    print(tables(json.loads(parser.parse_args().json.read_text())))


if __name__ == "__main__":
    main()
