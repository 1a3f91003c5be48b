"""docs/presets.md: what each preset is for, and where it differs from what lies below it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generator.preset_sources import SOURCES, Source
from generator.words import NOTE, code, plain, table, wrapped
from voidrl.api import build_config
from voidrl.config import PIECES, to_json
from voidrl.protocols.presets import PRESETS
from voidrl.types import EnvSpec


def presets() -> str:
    """What each preset is for, and where it differs from the defaults."""
    parts = [
        NOTE,
        "# Presets\n",
        wrapped(
            'Named sets of [config](config.md) values: `--preset NAME` on the command line, `preset="NAME"` '
            "in Python. What is given besides wins over the preset. `atari/…` takes `atari-paper` and "
            "`dmc/…` `urlb-states` where none is named; other environments take the defaults."
        ),
        table(["preset", "for"], ([f"[{n}](#{n})", plain(p.about)] for n, p in PRESETS.items())) + "\n",
    ]
    for name in PRESETS:
        source = SOURCES[name]
        parts += [f"## {name}\n", f"{PRESETS[name].about}\n", wrapped(source.text)]
        parts += ["```sh\n" + source.command + "\n```\n"]
        parts += [_differences(name, source)]
    return "\n".join(parts)


def _differences(name: str, source: Source) -> str:
    spec = _spec(source)
    values = PRESETS[name].values
    mine = _flat(to_json(build_config(spec, [values])))
    if source.base is None:
        pieces = {kind: mine[f"{kind}.name"] for kind in PIECES}
        chosen = build_config(spec, [])
        other, whose = _flat(to_json(build_config(spec, [pieces]))), "default"
        for kind in PIECES:
            other[f"{kind}.name"] = getattr(chosen, kind).name
    else:
        below = build_config(_spec(SOURCES[source.base]), [PRESETS[source.base].values])
        other, whose = _flat(to_json(below)), f"`{source.base}`"
    notes = dict(source.notes)
    rows = []
    for field, value in mine.items():
        before = other.get(field, ...)
        if value != before:
            shown = "" if before is ... else code(before)
            rows.append([f"`{field}`".replace(".name", ""), code(value), shown, notes.pop(field, "")])
    assert not notes, f"presets_sources has notes about what {name} does not change: {sorted(notes)}"
    return table(["field", "here", whose, "from where, or why"], rows) + "\n"


def _spec(source: Source) -> EnvSpec:
    """What an environment of the preset looks like, so that nothing is left to be decided by it."""
    box = {"action_low": (-1.0,), "action_high": (1.0,), "action_shape": (1,)}
    shape = (3, 84, 84) if source.pixels else (24,)
    if source.discrete:
        return EnvSpec(shape, source.pixels, 1, num_actions=18, raw_shape=shape)
    return EnvSpec(shape, source.pixels, 1, num_actions=0, raw_shape=shape, **box)


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {path + key: value}
    return found
