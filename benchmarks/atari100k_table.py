"""Scores of agents on Atari after 100K steps, next to published ones: a Markdown table and a picture.

    python benchmarks/atari100k_table.py results/atari100k/metrics --picture results/atari100k/scores.png

Reads `AGENT-GAME-seedN.jsonl`: the `metrics.jsonl` of single runs, renamed. A row has the last evaluation of
each seed, their mean and standard deviation, and the published scores of the same agent and game: the one
printed in the APT paper, and that of a larger public sample. A run with fewer steps than the longest one is
marked, and not compared. The picture has the returns of training games and, at its right edge, evaluations
and bands.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markdown_table import as_markdown

from voidrl.envs.suites.atari import human_normalized
from voidrl.envs.suites.published import numbers
from voidrl.report.figures import COLORS, DPI, import_pyplot
from voidrl.report.formatting import Table, steps
from voidrl.runs.metrics import read_metrics

FILE = re.compile(r"(?P<agent>.+)-(?P<game>[a-z_]+)-seed(?P<seed>\d+)")
SPREAD = {  # standard deviation of single runs in the larger samples
    "drq-eps": {"assault": 40, "krull": 660, "asterix": 142, "boxing": 3},
    "spr": {"assault": 55, "krull": 462, "asterix": 153, "boxing": 14},
    "bbf": {"assault": 300, "krull": 944, "asterix": 458, "boxing": 13},
}
BANDS = {  # where the mean of three seeds of the larger sample falls nine times in ten
    "drq-eps": {"assault": (544, 621), "krull": (3782, 5021), "asterix": (634, 902), "boxing": (6, 12)},
    "spr": {"assault": (512, 618), "krull": (3241, 4120), "asterix": (821, 1113), "boxing": (23, 50)},
    "bbf": {"assault": (1705, 2288), "krull": (7154, 8986), "asterix": (2746, 3621), "boxing": (64, 88)},
}
PRINTED_MARGIN = 0.3  # DER has no larger sample by game: its printed score and 30 % of it on both sides
SMOOTHED_STEPS = 20_000
AGENTS = ("drq-eps", "der", "spr", "bbf")  # in this order, others behind them
GAMES = ("assault", "krull", "asterix", "boxing")


@dataclass
class Scores:
    """The runs of an agent in a game."""

    agent: str
    game: str
    steps: int = 0
    """Of the last evaluation."""
    returns: dict[int, float] = field(default_factory=dict)
    """By seed: the mean return of the last evaluation."""
    episodes: int = 0
    """Games of an evaluation."""
    training: list[list[tuple[int, float]]] = field(default_factory=list)
    """By run: steps and returns of training games."""

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.mean(self.returns.values())

    @property
    def band(self) -> tuple[float, float] | None:
        """Where the mean of three seeds is expected after 100K steps."""
        band = BANDS.get(self.agent, {}).get(self.game)
        printed = self.published("table2")
        if band is None and self.agent == "der" and printed is not None:
            return (1 - PRINTED_MARGIN) * printed, (1 + PRINTED_MARGIN) * printed
        return band

    def published(self, table: str) -> float | None:
        """The score of this agent in a published table."""
        name = self.agent.replace("-", "_")
        rows = [row for row in numbers(table).rows if row.name == name]
        return rows[0].values.get(f"atari/{self.game}") if rows else None

    def verdict(self, longest: int) -> str:
        """Whether the mean lies in the band, and by how much it misses it."""
        if self.band is None or self.steps < longest:
            return "not comparable"
        low, high = self.band
        if self.mean > high:
            return f"above by {self.mean / high - 1:.1%}"
        return f"below by {1 - self.mean / low:.1%}" if self.mean < low else "yes"


def read_scores(folder: Path) -> list[Scores]:
    """Every agent and game of a folder."""
    found: dict[tuple[str, str], Scores] = {}
    for path in sorted(folder.glob("*.jsonl")):
        match = FILE.fullmatch(path.stem)
        if match is None:
            raise SystemExit(f"{path.name}: expected a name such as spr-assault-seed1.jsonl")
        agent, game = match["agent"], match["game"]
        scores = found.setdefault((agent, game), Scores(agent, game))
        rows = read_metrics(path)
        evaluations = [row for row in rows if "eval/return" in row]
        if not evaluations:
            raise SystemExit(f"{path.name}: expected an evaluation (eval/return), found none")
        scores.returns[int(match["seed"])] = evaluations[-1]["eval/return"]
        scores.steps = evaluations[-1]["step"]
        scores.episodes = evaluations[-1]["eval/episodes"]
        scores.training.append(
            [(row["step"], row["episode/return"]) for row in rows if "episode/return" in row]
        )
    return sorted(found.values(), key=lambda each: (_place(AGENTS, each.agent), _place(GAMES, each.game)))


def make_table(scores: list[Scores]) -> Table:
    """A row for each agent and game."""
    longest = max(each.steps for each in scores)
    rows = []
    for each in scores:
        larger = each.published("atari100k")
        spread = SPREAD.get(each.agent, {}).get(each.game)
        returns = list(each.returns.values())
        rows.append(
            [
                each.agent if each.steps == longest else f"{each.agent}, {steps(each.steps)} steps",
                each.game,
                ", ".join(map(_number, returns)),
                _number(each.mean),
                _number(statistics.stdev(returns)) if len(returns) > 1 else "–",
                f"{human_normalized(each.game, each.mean):.2f}",
                _number(each.published("table2")),
                "–" if larger is None else f"{_number(larger)} ± {spread}",
                "–" if each.band is None else "{} to {}".format(*map(_number, each.band)),
                each.verdict(longest),
            ]
        )
    columns = ["agent", "game", "seeds", "mean", "sd", "human-normalized", "printed"]
    columns += ["larger sample", "band", "inside?"]
    return Table("Atari after 100K steps", columns, rows, numeric=frozenset(range(3, 8)))


def draw(plt: Any, scores: list[Scores]) -> Any:
    """A panel for each game: training returns over steps, then evaluations and the bands of their means."""
    by_game: dict[str, list[Scores]] = defaultdict(list)
    for each in scores:
        by_game[each.game].append(each)
    agents = list(dict.fromkeys(each.agent for each in scores))
    color = dict(zip(agents, COLORS, strict=False))
    longest = max(each.steps for each in scores)
    width = 3.1 * len(by_game)
    figure, axes = plt.subplots(1, len(by_game), figsize=(width, 3.3), layout="constrained", squeeze=False)
    for axis, (game, members) in zip(axes.flat, by_game.items(), strict=True):
        for each in members:
            grid = np.arange(2000, each.steps + 1, 2000)
            curves = np.array([_smooth(run, grid) for run in each.training])
            axis.plot(grid, curves.mean(0), color=color[each.agent], linewidth=1.8)
            axis.fill_between(
                grid, curves.min(0), curves.max(0), color=color[each.agent], alpha=0.13, linewidth=0
            )
            place = longest * (1.06 + 0.07 * agents.index(each.agent))
            if each.steps == longest and each.band is not None:
                axis.plot([place, place], each.band, color=color[each.agent], linewidth=7, alpha=0.3,
                          solid_capstyle="butt")  # fmt: skip
            values = list(each.returns.values())
            x = place if each.steps == longest else each.steps
            axis.plot([x] * len(values), values, "o", color=color[each.agent], markersize=3.6, alpha=0.75)
            axis.plot([x], [each.mean], "_", color=color[each.agent], markersize=11, markeredgewidth=2.2)
        axis.axvline(longest * 1.02, color="0.8", linewidth=0.8)
        axis.set_title(game, fontsize=10)
        axis.set_xlim(0, longest * (1.1 + 0.07 * (len(agents) - 1)))
        axis.set_xticks(np.linspace(0, longest, 3), ["0", steps(longest // 2), steps(longest)])
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    axes[0, 0].set_ylabel("return of whole games", fontsize=9)
    for agent in agents:
        figure.axes[0].plot([], [], color=color[agent], linewidth=1.8, label=agent)
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=len(agents))
    return figure


def _smooth(run: list[tuple[int, float]], grid: Any) -> Any:
    """The mean of the rows of the last `SMOOTHED_STEPS`; before the first row, its value."""
    at, values = np.array(run).T
    means = []
    for step in grid:
        inside = (at <= max(step, at[0])) & (at > step - SMOOTHED_STEPS)
        means.append(values[inside].mean())
    return np.array(means)


def _place(order: tuple[str, ...], name: str) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order)), name


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"


def main() -> None:
    """Read, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("metrics", type=Path, help="a folder of AGENT-GAME-seedN.jsonl")
    parser.add_argument("--picture", type=Path, metavar="PNG")
    parser.add_argument("--markdown", type=Path, metavar="MD", help="write the table to a file too")
    options = parser.parse_args()
    scores = read_scores(options.metrics)
    if not scores:
        parser.error(f"expected files AGENT-GAME-seedN.jsonl in {options.metrics}, found none")
    text = as_markdown(make_table(scores))
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.picture:
        draw(import_pyplot(), scores).savefig(options.picture, dpi=DPI)


if __name__ == "__main__":
    main()
