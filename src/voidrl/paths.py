"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path

from voidrl.errors import ConfigError

SHOWN_CHARACTERS = 80  # of a path that may be thousands long


def user_path(given: str | Path) -> Path:
    """Expand `~`, and refuse what no system call would accept, whether or not something is there."""
    try:
        str(given).encode()  # safetensors opens no other paths
        path = Path(given).expanduser()
        os.stat(path)  # noqa: PTH116 - `Path.exists` raises some of its errors and hides others
    except (FileNotFoundError, NotADirectoryError):
        pass  # whether something has to be there is the caller's question
    except RuntimeError:  # of `expanduser`
        user = str(given).partition("/")[0]
        raise ConfigError(f"the path {_shown(given)} cannot be used: there is no user {user[1:]!r}") from None
    except UnicodeEncodeError:
        raise ConfigError(
            f"the path {_shown(given)} cannot be used: it is not UTF-8; choose another"
        ) from None
    except (OSError, ValueError) as error:  # too long, a loop of links, no permission; a NUL character
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConfigError(
            f"the path {_shown(given)} cannot be used: {why[0].lower()}{why[1:]}; choose another"
        ) from None
    return path


def _shown(given: str | Path) -> str:
    text = repr(str(given))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…'"
