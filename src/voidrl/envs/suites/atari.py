"""The 57 Atari games: their names in any spelling, and random and human scores."""

from __future__ import annotations

import csv
import importlib.resources
import re
from collections.abc import Iterable
from typing import Literal

from voidrl.errors import ConfigError, UnknownNameError


def _read(file: str) -> dict[str, dict[str, float]]:
    """Read a table in `data/` as game → column → number."""
    text = importlib.resources.files("voidrl.envs.suites").joinpath("data", file).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    return {row.pop("game"): {column: float(value) for column, value in row.items()} for row in rows}


def paper_table(games: Literal[26, 57]) -> dict[str, dict[str, float]]:
    """The paper's table as printed, game → column → number, with its misprints (listed in `data/README.md`).

    Its columns `random_printed` and `human_printed` are for comparison only; use `baseline`.
    """
    if games not in (26, 57):
        raise ConfigError(f"no table of {games!r} games: expected 26 or 57, the two that the paper prints")
    return _read(f"paper_table_atari{games}.csv")


_BASELINES = _read("atari57_scores.csv")

GAMES: tuple[str, ...] = tuple(sorted(_BASELINES))
"""The names of their ROMs in ALE."""

GAMES_26: tuple[str, ...] = tuple(sorted(paper_table(26)))
"""The 26 games of the Atari 100K benchmark."""

# Titles of these games whose letters differ from the ROM's name; all others differ in case, spaces and
# punctuation only.
_ALIASES = {
    "jamesbond007": "jamesbond",
    "montezumasrevenge": "montezuma_revenge",
    "robottank": "robotank",
    "tutankhamun": "tutankham",
    "upanddown": "up_n_down",
}

# Gymnasium's ids of all versions: `ALE/Pong-v5`, `ale_py:ALE/Pong-ram-v5`,
# `PongNoFrameskip-v4`, `Pong-ramDeterministic-v0`; and voidrl's `atari/pong`.
_GYMNASIUM_ID = re.compile(
    r"(?:ale_py:)?(?:ALE/|atari/)?(?P<game>.+?)(?:-ram)?(?:NoFrameskip|Deterministic)?(?:-v\d+)?",
    re.IGNORECASE,
)


def find_game(name: str, known: Iterable[str] = GAMES) -> str:
    """The game in `known` that `name` means, spelled as in ALE, Gymnasium, a paper or on the box.

    Only letters and digits count, in any case: `ms_pacman`, `ALE/MsPacman-v5` and "Ms. Pac-Man" are one game.
    A name that is merely similar is an error, since a score under another game would go unnoticed.
    """
    spelled = {_letters(game): game for game in known}
    match = _GYMNASIUM_ID.fullmatch(name.strip())
    core = match["game"] if match else name
    for letters in (_letters(name), _letters(core)):
        for key in (letters, _letters(_ALIASES.get(letters, letters))):
            if key in spelled:
                return spelled[key]
    remedy = (
        "Only the 57 games of voidrl.envs.suites.atari.GAMES have a human score." if known is GAMES else ""
    )
    raise UnknownNameError("game", core, spelled.values(), remedy)


def baseline(game: str) -> tuple[float, float]:
    """Scores of a random policy and of the human tester, which normalize to 0 and 1."""
    row = _BASELINES[find_game(game)]
    return row["random"], row["human"]


def human_normalized(game: str, score: float) -> float:
    """(score − random) / (human − random), a fraction: 0 is a random policy, 1 the human tester."""
    random, human = baseline(game)
    return (score - random) / (human - random)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
