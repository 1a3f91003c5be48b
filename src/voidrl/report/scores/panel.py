"""The panel: scores with and without pre-training on several Atari games, and conclusions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from voidrl.envs.suites.atari import human_normalized
from voidrl.report.scores.statistics import Differences, Interval, differences, known_game, percent
from voidrl.runs.experiment_record import CellRecord
from voidrl.system.units import plural

PRETRAIN = "-pretrain"  # after the name of an arm in the folders of its pre-trainings
FEW = 2  # pre-trainings of a game, up to which its interval is too narrow
Evaluations = Mapping[str, Mapping[str, Any] | None]
"""Evaluations of final agents by the folders of their cells; None, or nothing, where there is none."""
Groups = dict[int | None, list[float]]
"""Scores by the seed of their pre-training; None without one."""


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
    scored = [cell for cell in cells if cell.evaluated is not False and known_game(cell.task) is not None]
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


def _arm(cell: CellRecord) -> str:
    """The name of its arm; a pre-training of an arm that is fine-tuned as well has its own."""
    if cell.phase == "pretrain" and _has_both_phases(cell):
        return f"{cell.arm}{PRETRAIN}"
    return cell.arm or cell.label


def _has_both_phases(cell: CellRecord) -> bool:
    return bool(cell.arm) and f"/{cell.arm}{PRETRAIN}/" in cell.folder


@dataclass(frozen=True)
class Panel:
    """Scores of the arms, and their differences."""

    arms: PanelArms
    scores: Mapping[str, Mapping[str, Groups]]
    """Raw scores by arm and game, in the order of seeds."""
    labels: Mapping[str, str]
    """Names of arms in tables."""
    missing: int = 0
    """Runs that are not done."""

    @property
    def games(self) -> list[str]:
        """All games with a score, in their order."""
        return [*dict.fromkeys(game for arm in self.arms.names for game in self.scores.get(arm, {}))]

    @property
    def title(self) -> str:
        """The difference that the panel shows."""
        return f"{self.label(self.arms.finetuned)} − {self.label(self.arms.scratch)}, human-normalized"

    def label(self, arm: str | None) -> str:
        """The name of an arm in tables."""
        return self.labels.get(arm or "", arm or "")

    def groups(self, arm: str | None, game: str) -> Groups:
        """Raw scores of an arm in a game."""
        return self.scores.get(arm or "", {}).get(game, {})

    def shares(self, arm: str | None, game: str) -> list[list[float]]:
        """Human-normalized scores of each pre-training."""
        return [[human_normalized(game, x) for x in group] for group in self.groups(arm, game).values()]

    def normalized(self, arm: str | None, game: str) -> float | None:
        """Human-normalized mean over pre-trainings of the mean over seeds; None without a score."""
        groups = self.shares(arm, game)
        return float(np.mean([np.mean(group) for group in groups])) if groups else None

    @cached_property
    def gain(self) -> Differences | None:
        """Fine-tuned minus from scratch in human-normalized scores; None before a game has both."""
        return self._differences(self.arms.finetuned, self.arms.scratch)

    @cached_property
    def zero_shot_gain(self) -> Differences | None:
        """Zero-shot minus random play; None before a game has both."""
        return self._differences(self.arms.zero_shot, self.arms.random)

    def _differences(self, nested: str | None, plain: str | None) -> Differences | None:
        both = [game for game in self.games if self.groups(nested, game) and self.groups(plain, game)]
        if not both:
            return None
        return differences(
            {game: self.shares(nested, game) for game in both},
            {game: [share for group in self.shares(plain, game) for share in group] for game in both},
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
        text = f"Pooled over {plural(len(gain.games), 'game')}, {tuned} − {scratch} is {signed(pooled.point)}"
        text += " human-normalized"
        if pooled.is_flat:
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
        if min(len(self.groups(self.arms.finetuned, game)) for game in games) <= FEW:
            yield (
                "With so few pre-trainings of a game, intervals say little about how much pre-trainings "
                "differ, and tend to be too narrow."
            )
        yield "Intervals are over seeds in these games; they do not say what happens in other games."
        partial = [game for game in self.games if game not in games]
        if partial:
            yield f"Not compared, as one of the two has no score yet: {', '.join(partial)}."
        if self.missing:
            yield f"Not done yet: {plural(self.missing, 'run')}."

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
        groups = self.shares(self.arms.zero_shot, game)
        return [] if base is None else [share - base for group in groups for share in group]

    def seeds_in_words(self, arm: str, game: str) -> str:
        """Every score, by pre-training where there are several seeds of each: `1: 540, 915; 2: 629, 672`."""
        texts = {p: ", ".join(map(show_score, group)) for p, group in self.groups(arm, game).items()}
        if None in texts:
            return texts[None]
        return "; ".join(f"pre-training {p}: {text}" for p, text in texts.items())


def make_panels(cells: Sequence[CellRecord], evaluations: Evaluations) -> list[Panel]:
    """The panels of an experiment in which at least one run is done."""
    scored = [cell for cell in cells if cell.evaluated is not False and known_game(cell.task) is not None]
    done = [cell for cell in scored if evaluations.get(cell.folder) is not None]
    scores: dict[str, dict[str, Groups]] = {}
    for cell in sorted(done, key=lambda cell: (cell.pretrain_seed or 0, cell.seed)):
        saved, game = evaluations[cell.folder], known_game(cell.task)
        assert saved is not None
        assert game is not None
        groups = scores.setdefault(_arm(cell), {}).setdefault(game, {})
        source = None if cell.method == "random" else cell.pretrain_seed
        groups.setdefault(source, []).append(float(saved["mean_return"]))
    labels = {
        _arm(cell): f"{cell.label}, zero-shot" if _has_both_phases(cell) else cell.label for cell in scored
    }
    panels = []
    for arms in find_arms(cells):
        due, found = ([cell for cell in each if _arm(cell) in arms.names] for each in (scored, done))
        panels += [Panel(arms, scores, labels, missing=len(due) - len(found))] if found else []
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
    return "" if interval.is_flat else f"[{signed(interval.low)}, {signed(interval.high)}]"


def _part(some: Sequence[str], games: Mapping[str, Any], *, names: bool = False) -> str:
    """`3 of 5 games`, with their names if asked for."""
    if names:
        return f"{len(some)} ({', '.join(some)})" if some else "none"
    return f"{len(some)} of {plural(len(games), 'game')}"
