"""What runs scored on Atari: evaluations on disk, and one table of many of them.

An evaluation on disk is what `voidrl evaluate RUN --json` prints and `voidrl experiment` writes into runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidrl.checkpoint import list_steps, read_json
from voidrl.envs.ids import atari_game
from voidrl.errors import CheckpointError, ConfigError, RunFolderError
from voidrl.metrics import read_metrics
from voidrl.runs.folder import RunFolder
from voidrl.suites.atari import find_game

if TYPE_CHECKING:
    from voidrl.agent import Agent
    from voidrl.evaluation import Evaluation

FILE_NAME = "evaluation.json"


@dataclass(frozen=True)
class Score:
    """The final evaluation of one run."""

    source: str
    """The folder or file it was read from."""
    game: str
    what: str
    """The kind of run: its method, and its phase unless that is pre-training."""
    seed: int
    """Of training."""
    steps: int
    """Of training, after which the agent was evaluated."""
    score: float
    """Mean over episodes."""
    episodes: int


def record(
    agent: Agent, source: str | Path, result: Evaluation, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """An evaluation as JSON: of which agent, how, and everything that came of it."""
    config, row, run = agent.config, result.metrics(), Path(source).expanduser()
    saved = list_steps(run / "checkpoints")
    return {
        "agent": {
            "env": config.env.id,
            "phase": config.phase,
            "method": config.method.name,
            "seed": config.seed,
            "steps": saved[-1] if saved else agent.steps,
            "steps_with_pretraining": agent.steps,
            "source": str(source),
            "started": started(run),
        },
        "settings": dict(settings),
        "mean_return": result.mean_return,
        "std_return": row["eval/return_std"],
        "human_normalized": result.human_normalized,
        "episodes": len(result.returns),
        **dataclasses.asdict(result),
    }


def started(run: Path) -> str | None:
    """When the run in a folder was begun, which tells it from one that was there before it."""
    try:
        date = read_json(run / "environment.json", "the machine of a run")["date"]
    except (CheckpointError, KeyError, TypeError):
        return None
    return str(date)


def read_scores(paths: Iterable[str | Path]) -> list[Score]:
    """The final evaluation of each run folder or evaluation file: runs of one kind, a seed of a game once."""
    scores: list[Score] = []
    for path in paths:
        new = _read(Path(path).expanduser())
        for old in scores:
            if old.what != new.what:
                raise ConfigError(
                    f"{old.source} is a run of {old.what!r} and {new.source} one of {new.what!r}: expected "
                    f"runs of one kind, as the scores of all are put together"
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
    """`{game: [one score per seed, …]}`, as `stats.summarize` takes them."""
    games: dict[str, list[float]] = {}
    for found in sorted(scores, key=lambda score: (score.game, score.seed)):
        games.setdefault(found.game, []).append(found.score)
    return games


def _read(path: Path) -> Score:
    if path.is_file() and path.name not in ("config.json", "metrics.jsonl"):
        return _of_record(path, read_json(path, "an evaluation"))
    run = RunFolder.open(path).path
    config = read_json(run / "config.json", "the config of a run")
    try:
        env, seed = str(config["env"]["id"]), int(config["seed"])
        what = _kind(config["phase"], config["method"]["name"], env)
    except (KeyError, TypeError, ValueError):
        raise RunFolderError(
            f"{run / 'config.json'} is not the config of a run: expected env, seed …"
        ) from None
    game = _game(env, run)
    rows = read_metrics(run) if (run / "metrics.jsonl").is_file() else []
    reached = rows[-1]["step"] if rows else 0
    evaluated = [row for row in rows if row.get("eval/return") is not None]
    remedy = f"`voidrl evaluate {run} --steps 125k --json > {run / FILE_NAME}`"
    if (run / FILE_NAME).is_file():
        saved = read_json(run / FILE_NAME, "an evaluation")
        found = _of_record(run / FILE_NAME, saved)
        of_another = saved["agent"].get("started") not in (None, started(run))
        if (
            not of_another
            and found.steps >= reached
            and (found.game, found.seed, found.what) == (game, seed, what)
        ):
            return found
        if not evaluated:
            raise RunFolderError(
                f"{run / FILE_NAME} is of an earlier agent than the one in its folder: evaluate anew with "
                f"{remedy}"
            )
    if not evaluated:
        raise RunFolderError(f"{run} holds no evaluation: make one with {remedy}")
    last = evaluated[-1]
    episodes = int(last.get("eval/episodes", 0))
    return Score(str(run), game, what, seed, int(last["step"]), float(last["eval/return"]), episodes)


def _of_record(path: Path, saved: Any) -> Score:
    try:
        agent, score, episodes = saved["agent"], float(saved["mean_return"]), len(saved["returns"])
        env = str(saved["settings"]["env"])
        what = _kind(agent["phase"], agent["method"], env)
        seed, steps = int(agent["seed"]), int(agent["steps"])
    except (KeyError, TypeError, ValueError):
        raise RunFolderError(
            f"{path} is no evaluation: expected what `voidrl evaluate RUN --json` prints, or a run folder"
        ) from None
    return Score(str(path), _game(env, path), what, seed, steps, score, episodes)


def _kind(phase: str, method: str, env: str) -> str:
    """A run from scratch has a method in its config, but does not use it. Options make another game."""
    kind = {"pretrain": method, "train": "scratch"}.get(phase, f"{phase} {method}")
    options = env.partition("?")[2]
    return f"{kind} with ?{options}" if options else kind


def _game(env: str, path: Path) -> str:
    name = atari_game(env)
    if name is None:
        raise ConfigError(
            f"{path} is a run in {env!r}, which has no human score: expected runs in atari/<game>"
        )
    return find_game(name)
