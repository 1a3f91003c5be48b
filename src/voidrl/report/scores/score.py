"""Atari scores of runs, from their evaluations on disk or from their metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidrl.config import bonus_suffix
from voidrl.envs.ids import atari_game
from voidrl.envs.suites.atari import find_game
from voidrl.errors import ConfigError, RunFolderError
from voidrl.runs.checkpoint import read_json
from voidrl.runs.evaluations import (
    FILE_NAME,
    final_evaluation,
    read_evaluation,
)
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import read_metrics
from voidrl.system.files import user_path

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Score:
    """The final evaluation of one run."""

    source: str
    """The folder or file it was read from."""
    game: str
    kind: str
    """The method, and the phase unless that is pre-training."""
    seed: int
    steps: int
    """Training steps before the evaluation."""
    score: float
    """Mean over episodes."""
    episodes: int


def read_scores(paths: Iterable[str | Path]) -> list[Score]:
    """Read the final evaluation of each run folder or evaluation file: one kind, each seed of a game once."""
    scores: list[Score] = []
    for path in paths:
        new = _read_score(user_path(path))
        for old in scores:
            if old.kind != new.kind:
                raise ConfigError(
                    f"{old.source} is a run of {old.kind!r} and {new.source} one of {new.kind!r}: expected "
                    f"runs of one kind, whose scores can be aggregated"
                )
            if (old.game, old.seed) == (new.game, new.seed):
                raise ConfigError(
                    f"{old.source} and {new.source} are both of game {new.game!r} with seed {new.seed}: "
                    f"expected each seed of a game once; leave one of them out"
                )
        scores.append(new)
    if not scores:
        raise ConfigError("no scores: expected at least one run folder or evaluation file")
    return scores


def by_game(scores: Iterable[Score]) -> dict[str, list[float]]:
    """Group scores as `{game: [one score per seed, …]}`, which `statistics.summarize` takes."""
    games: dict[str, list[float]] = {}
    for found in sorted(scores, key=lambda score: (score.game, score.seed)):
        games.setdefault(found.game, []).append(found.score)
    return games


def _read_score(path: Path) -> Score:
    if path.is_file() and path.name not in ("config.json", "metrics.jsonl"):
        return _score_of(path, read_evaluation(path))
    run = RunFolder.open(path).path
    config = read_json(run / "config.json", "the config of a run")
    try:
        env, seed = str(config["env"]["id"]), int(config["seed"])
        kind = _kind(config, env)
    except (KeyError, TypeError, ValueError):
        raise RunFolderError(
            f"{run / 'config.json'} is not the config of a run: expected env, seed, phase and method"
        ) from None
    game = _game(env, run)
    rows = read_metrics(run) if (run / "metrics.jsonl").is_file() else []
    problem = f"{run} holds no evaluation"
    try:
        saved = final_evaluation(run, rows[-1]["step"] if rows else 0)
        if saved is not None:
            score = _score_of(run / FILE_NAME, saved)
            if (score.game, score.seed, score.kind) == (game, seed, kind):
                return score
            problem = f"{run / FILE_NAME} is of another agent than the run's"
    except RunFolderError as error:
        problem = str(error)
    # At step 0 a fine-tuning evaluates the pre-trained agent.
    last = next((row for row in reversed(rows) if row["step"] and row.get("eval/return") is not None), None)
    if last is None:
        remedy = f"`voidrl evaluate {run} --steps 125k --json > {run / FILE_NAME}`"
        raise RunFolderError(f"{problem}; make one with {remedy}")
    episodes = int(last.get("eval/episodes", 0))
    return Score(str(run), game, kind, seed, int(last["step"]), float(last["eval/return"]), episodes)


def _score_of(path: Path, saved: dict[str, Any]) -> Score:
    agent, episodes = saved["agent"], len(saved["returns"])
    try:
        env = str(saved["settings"]["env"])
        bonus = {"coefficient": agent.get("bonus", 0)}
        kind = _kind({"phase": agent["phase"], "method": {"name": agent["method"]}, "bonus": bonus}, env)
        seed = int(agent["seed"])
    except (KeyError, TypeError, ValueError):
        raise RunFolderError(
            f"{path} does not name its agent: expected settings.env, agent.phase, agent.method and agent.seed"
        ) from None
    return Score(str(path), _game(env, path), kind, seed, agent["steps"], saved["mean_return"], episodes)


def _kind(config: Mapping[str, Any], env: str) -> str:
    """Name the trained method. From scratch a method is only a bonus; environment options are included."""
    phase, method = config["phase"], config["method"]["name"]
    kind = {"pretrain": method, "train": "scratch"}.get(phase, f"{phase} {method}") + bonus_suffix(config)
    options = env.partition("?")[2]
    return f"{kind} with ?{options}" if options else kind


def _game(env: str, path: Path) -> str:
    name = atari_game(env)
    if name is None:
        raise ConfigError(
            f"{path} is a run in {env!r}, which has no human score: expected runs in atari/<game>"
        )
    return find_game(name)
