"""How a report writes numbers, lists and dates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

THIN = "\u202f"  # a narrow space that does not break
_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count(value: float) -> str:
    """A whole number with its thousands apart: 16 000."""
    return f"{value:,.0f}".replace(",", THIN)


def steps(value: float) -> str:
    """A number of steps, short where that loses nothing: 16k, 2M, 12 345."""
    for size, unit in ((1_000_000, "M"), (1000, "k")):
        short = value / size
        if value >= size and abs(short - round(short, 2)) < 1e-9:
            return f"{short:g}{unit}"
    return count(value)


def between(values: Iterable[float]) -> str:
    """The only number of steps, or the lowest and the highest: `16k`, `8k to 16k`."""
    found = sorted({*values})
    return " to ".join(map(steps, dict.fromkeys([found[0], found[-1]])))


def many(number: int, noun: str, plural: str = "") -> str:
    """`one run`, `12 runs`."""
    shown = _SMALL[number] if number < len(_SMALL) else count(number)
    return f"{shown} {noun if number == 1 else plural or noun + 's'}"


def listed(words: Iterable[str], most: int = 8) -> str:
    """`a, b and c`, and how many more there are."""
    found = [*words]
    if len(found) > most:
        return f"{', '.join(found[:most])} and {count(len(found) - most)} more"
    return " and ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))


def seeds(numbers: Sequence[int]) -> str:
    """`1–5, 8`: runs of whole numbers are drawn together."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    shown: list[str] = []
    for part in parts:
        shown += [f"{part[0]}–{part[-1]}"] if len(part) > 2 else map(str, part)
    return ", ".join(shown)


def sentence(text: str) -> str:
    """With a capital at its beginning and a full stop at its end."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def day(date: object) -> str:
    """The day of an ISO date; empty where there is none."""
    return date[:10] if isinstance(date, str) else ""
