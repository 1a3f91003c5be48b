"""The panel: scores with and without pre-training on several Atari games, and conclusions.

`panel.json` in an experiment's folder is the list of its scores, written whenever a run is done.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.envs.ids import atari_game
from voidrl.envs.suites.atari import find_game, human_normalized
from voidrl.errors import CheckpointError, ConfigError, RunFolderError, UnknownNameError
from voidrl.report.scores.differences import Differences, differences
from voidrl.report.scores.statistics import Interval, percent
from voidrl.runs.checkpoint import remove_leftovers, write_text_atomic
from voidrl.runs.evaluations import final_evaluation
from voidrl.runs.experiment_record import CellRecord, ExperimentRecord
from voidrl.system.files import read_text

FILE_NAME = "panel.json"
MAX_BYTES = 2**24
PRETRAIN = "-pretrain"  # after the name of an arm in the folders of its pre-trainings
LEAST_RUNS = 4  # of each arm in every game: pooled intervals of 2 × 1 against 2 runs cover 84 to 88 %, not 90
Evaluations = Mapping[str, Mapping[str, Any] | None]
"""Evaluations of final agents by the folders of their cells; None, or nothing, where there is none."""


@dataclass(frozen=True)
class PanelEntry:
    """The score of one run."""

    game: str
    arm: str
    pretrain_seed: int | None
    """Seed of the pre-training: the run itself, or the one it starts from; None without one."""
    seed: int | None
    """Seed of training with the game's reward, or of random play; None for zero-shot evaluation."""
    steps: int
    """Steps of this run: without reward for zero-shot evaluation, otherwise with it."""
    score: float
    """Mean over whole games."""
    human_normalized: float


@dataclass(frozen=True)
class PanelArms:
    """The arms that are compared, by their names in entries."""

    finetuned: str
    scratch: str
    zero_shot: str | None = None
    random: str | None = None

    @property
    def names(self) -> list[str]:
        """The existing arms, in the order of tables."""
        return [name for name in (self.random, self.zero_shot, self.scratch, self.finetuned) if name]


def find_arms(cells: Iterable[CellRecord]) -> list[PanelArms]:
    """The comparisons of an experiment: each method from scratch with the fine-tuned one that it is like.

    Where the file says nothing of that, one fine-tuned method and one from scratch are compared.
    """
    scored = [cell for cell in cells if cell.evaluated is not False and _game(cell.task) is not None]
    phases: dict[str, dict[str, CellRecord]] = {}
    for cell in scored:
        phases.setdefault(cell.phase, {})[_arm(cell)] = cell
    tuned, scratch = phases.get("finetune", {}), phases.get("train", {})
    pairs = [(cell.like, name) for name, cell in scratch.items() if cell.like in tuned]
    if not pairs and len(tuned) == len(scratch) == 1:
        pairs = [(next(iter(tuned)), next(iter(scratch)))]
    by_folder = {cell.folder: cell for cell in scored}
    random = [_arm(cell) for cell in scored if cell.method == "random" and cell.phase == "pretrain"]
    found = []
    for name, from_scratch in pairs:
        assert name is not None
        source = by_folder.get(tuned[name].source or "")
        zero_shot = None if source is None else _arm(source)
        found.append(PanelArms(name, from_scratch, zero_shot, random[0] if random else None))
    return found


def make_entries(cells: Iterable[CellRecord], evaluations: Evaluations) -> list[PanelEntry]:
    """The scores of all evaluated runs on Atari games."""
    entries = []
    for cell in cells:
        game = _game(cell.task)
        saved = evaluations.get(cell.folder)
        if cell.evaluated is False or game is None or saved is None:
            continue
        score = float(saved["mean_return"])
        is_random = cell.method == "random" and cell.phase == "pretrain"
        as_it_is = cell.phase == "pretrain" and not is_random
        entries.append(
            PanelEntry(
                game=game,
                arm=_arm(cell),
                pretrain_seed=None if is_random else cell.pretrain_seed,
                seed=None if as_it_is else cell.seed,
                steps=cell.steps,
                score=score,
                human_normalized=human_normalized(game, score),
            )
        )
    return entries


def _arm(cell: CellRecord) -> str:
    """The name of its arm; a pre-training of an arm that is fine-tuned as well has its own."""
    if cell.phase == "pretrain" and _has_both_phases(cell):
        return f"{cell.arm}{PRETRAIN}"
    return cell.arm or cell.label


def _has_both_phases(cell: CellRecord) -> bool:
    return bool(cell.arm) and f"/{cell.arm}{PRETRAIN}/" in cell.folder


def _game(env: str) -> str | None:
    name = atari_game(env)
    with suppress(UnknownNameError):
        return name and find_game(name)
    return None


# The file


def write_panel(record: ExperimentRecord) -> Path | None:
    """Write `panel.json` into the experiment's folder; None for experiments that compare no such arms."""
    if not find_arms(record.cells):
        return None

    evaluations: dict[str, dict[str, Any] | None] = {}
    for cell in record.cells:
        with suppress(CheckpointError, RunFolderError):
            evaluations[cell.folder] = final_evaluation(record.root / cell.folder, cell.steps)
    path = record.root / FILE_NAME
    lines = [json.dumps(dataclasses.asdict(entry)) for entry in make_entries(record.cells, evaluations)]
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    with suppress(OSError, ValueError):
        if read_text(path, MAX_BYTES) == text:
            return path
    remove_leftovers(path)
    write_text_atomic(path, text)
    return path


def read_panel(path: Path) -> list[PanelEntry]:
    """Read a `panel.json`."""
    names = {field.name for field in dataclasses.fields(PanelEntry)}
    try:
        entries = [
            PanelEntry(**{k: v for k, v in each.items() if k in names})
            for each in json.loads(read_text(path, MAX_BYTES))
        ]
        if not all(math.isfinite(each.score) and math.isfinite(each.human_normalized) for each in entries):
            raise ValueError("a score is not finite")
        return entries
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} cannot be read as a panel ({error}): expected a list of entries with "
            f"{', '.join(sorted(names))}"
        ) from None


# Results


@dataclass(frozen=True)
class Panel:
    """Scores of the arms, and their differences."""

    arms: PanelArms
    entries: list[PanelEntry]
    labels: Mapping[str, str]
    """Names of arms in tables."""
    missing: int = 0
    """Runs that are not done."""

    @property
    def games(self) -> list[str]:
        """All games with a score, in their order."""
        return [*dict.fromkeys(entry.game for entry in self.entries if entry.arm in self.arms.names)]

    def label(self, arm: str | None) -> str:
        """The name of an arm in tables."""
        return self.labels.get(arm or "", arm or "")

    def of(self, arm: str | None, game: str) -> list[PanelEntry]:
        """The scores of an arm in a game."""
        found = [entry for entry in self.entries if (entry.arm, entry.game) == (arm, game)]
        return sorted(found, key=lambda entry: (entry.pretrain_seed or 0, entry.seed or 0))

    def groups(self, arm: str | None, game: str) -> dict[int | None, list[PanelEntry]]:
        """Scores of the arms by pre-training."""
        groups: dict[int | None, list[PanelEntry]] = {}
        for entry in self.of(arm, game):
            groups.setdefault(entry.pretrain_seed, []).append(entry)
        return groups

    def normalized(self, arm: str | None, game: str) -> float | None:
        """Human-normalized mean over pre-trainings of the mean over seeds; None without a score."""
        groups = self._nested(arm, game)
        return float(np.mean([np.mean(group) for group in groups])) if groups else None

    def _nested(self, arm: str | None, game: str) -> list[list[float]]:
        return [[each.human_normalized for each in group] for group in self.groups(arm, game).values()]

    @cached_property
    def gain(self) -> Differences | None:
        """Fine-tuned minus from scratch in human-normalized scores; None before a game has both."""
        return self._differences(self.arms.finetuned, self.arms.scratch)

    @property
    def _fewest_runs(self) -> int:
        """Runs of the arm and the game that has the fewest, of those that are compared."""
        games = () if self.gain is None else self.gain.games
        arms = (self.arms.finetuned, self.arms.scratch)
        return min((len(self.of(arm, game)) for arm in arms for game in games), default=0)

    @cached_property
    def zero_shot_gain(self) -> Differences | None:
        """Zero-shot minus random play; None before a game has both."""
        return self._differences(self.arms.zero_shot, self.arms.random)

    def _differences(self, nested: str | None, plain: str | None) -> Differences | None:
        both = [game for game in self.games if self.of(nested, game) and self.of(plain, game)]
        if not both:
            return None
        return differences(
            {game: self._nested(nested, game) for game in both},
            {game: [entry.human_normalized for entry in self.of(plain, game)] for game in both},
        )

    # In words

    def verdicts(self) -> list[str]:
        """Sentences about what the scores show, and what they do not."""
        texts = [*self._gain_in_words(), *self._zero_shot_in_words(), *self._limits()]
        return [text[:1].upper() + text[1:] for text in texts]

    def _gain_in_words(self) -> Iterator[str]:
        gain, tuned, scratch = self.gain, self.label(self.arms.finetuned), self.label(self.arms.scratch)
        if gain is None:
            yield f"No game has scores of both {tuned} and {scratch} yet."
            return
        ahead = [game for game, each in gain.games.items() if each.point > 0]
        # One run of each arm has no interval: its width is 0.
        clear = [game for game, each in gain.games.items() if 0 < each.low < each.high]
        below = [game for game, each in gain.games.items() if each.low < each.high < 0]
        text = f"{tuned} has the higher mean on {_part(ahead, gain.games)}"
        text += f"; its whole {gain.percent} interval is above 0 on {_part(clear, gain.games, names=True)}"
        yield text + (f", below 0 on {_part(below, gain.games, names=True)}." if below else ".")
        pooled = gain.pooled
        text = f"Pooled over {_games(len(gain.games))}, {tuned} − {scratch} is {signed(pooled.point)}"
        text += " human-normalized"
        if pooled.low == pooled.high:
            yield f"{text}; without a spread between seeds there is no interval, and nothing follows from it."
            return
        text += f", {gain.percent} interval {span(pooled)}"
        if pooled.low > 0:
            yield f"{text}, all of it above 0: in these games and at this scale, pre-training pays."
        elif pooled.high < 0:
            yield f"{text}, all of it below 0: in these games and at this scale, pre-training hurts."
        else:
            yield f"{text}, which includes 0: these runs do not tell whether pre-training helps or hurts."

    def _zero_shot_in_words(self) -> Iterator[str]:
        gain = self.zero_shot_gain
        if gain is None:
            return
        every = [game for game in gain.games if min(self.zero_shot_seeds(game)) > 0]
        ahead = [game for game, each in gain.games.items() if each.point > 0]
        yield (
            f"{self.label(self.arms.zero_shot)} is above {self.label(self.arms.random)} on "
            f"{_part(ahead, gain.games)} by its mean, with every pre-training seed on "
            f"{_part(every, gain.games, names=True)}."
        )

    def _limits(self) -> Iterator[str]:
        if self.gain is None:
            return
        games = self.gain.games
        counts = {len(self.groups(self.arms.finetuned, game)) for game in games}
        if min(counts) == 1:
            yield (
                "With one pre-training of a game, its interval says nothing about how much pre-trainings "
                "differ: another one may give another result."
            )
        elif min(counts) == 2:
            yield (
                "With two pre-trainings of a game, one difference shows how much they vary: the interval of "
                "a single game tends to be too narrow."
            )
        if len(games) > 1 and self._fewest_runs < LEAST_RUNS:
            yield (
                f"With {self._fewest_runs} {'run' if self._fewest_runs == 1 else 'runs'} of an arm in some "
                f"game, the pooled interval is a little too narrow."
            )
        yield "Intervals are over seeds in these games; they do not say what happens in other games."
        partial = [game for game in self.games if game not in games]
        if partial:
            yield f"Not compared, as one of the two has no score yet: {', '.join(partial)}."
        if self.missing:
            yield f"{self.missing} {'run is' if self.missing == 1 else 'runs are'} not done yet."

    # As tables

    def difference_rows(self) -> Iterator[tuple[str, Interval | None, Interval | None]]:
        """Each game and last `pooled`, with fine-tuned − scratch and zero-shot − random."""
        gains = (self.gain, self.zero_shot_gain)
        for game in self.games:
            first, second = (None if gain is None else gain.games.get(game) for gain in gains)
            yield game, first, second
        first, second = (None if gain is None else gain.pooled for gain in gains)
        yield "pooled", first, second

    def zero_shot_seeds(self, game: str) -> list[float]:
        """Zero-shot minus random play with each pre-training, human-normalized."""
        base = self.normalized(self.arms.random, game)
        entries = self.of(self.arms.zero_shot, game)
        return [] if base is None else [entry.human_normalized - base for entry in entries]

    def seeds_in_words(self, arm: str, game: str) -> str:
        """Every score, by pre-training where there are several seeds of each: `1: 540, 915; 2: 629, 672`."""
        groups = self.groups(arm, game)
        texts = {p: ", ".join(show_score(each.score) for each in group) for p, group in groups.items()}
        if None in texts:
            return texts[None]
        return "; ".join(f"pre-training {p}: {text}" for p, text in texts.items())


def make_panels(cells: Sequence[CellRecord], evaluations: Evaluations) -> list[Panel]:
    """The panels of an experiment in which at least one run is done."""
    entries = make_entries(cells, evaluations)
    scored = [cell for cell in cells if cell.evaluated is not False and _game(cell.task) is not None]
    labels = {
        _arm(cell): f"{cell.label}, zero-shot" if _has_both_phases(cell) else cell.label for cell in scored
    }
    panels = []
    for arms in find_arms(cells):
        done = sum(entry.arm in arms.names for entry in entries)
        due = sum(_arm(cell) in arms.names for cell in scored)
        panels += [Panel(arms, entries, labels, missing=due - done)] if done else []
    return panels


def show_score(score: float) -> str:
    """A raw score as text: `540`, `21.4`."""
    return f"{score:,.0f}" if abs(score) >= 100 else f"{score:,.1f}"


def signed(share: float) -> str:
    """A difference of shares: `+12.3 %`."""
    text = percent(share)
    return text if text.startswith("-") or text == percent(0.0) else f"+{text}"


def span(interval: Interval) -> str:
    """Ends of an interval: `[-1.0 %, +12.3 %]`; empty without a width."""
    if interval.low == interval.high:
        return ""
    return f"[{signed(interval.low)}, {signed(interval.high)}]"


def _part(some: Sequence[str], games: Mapping[str, Any], *, names: bool = False) -> str:
    """`3 of 5 games`, with their names if asked for."""
    if names:
        return f"{len(some)} ({', '.join(some)})" if some else "none"
    return f"{len(some)} of {_games(len(games))}"


def _games(count: int) -> str:
    return f"{count} game{'' if count == 1 else 's'}"
