"""docs/presets.md: what each preset is for, and how it differs from its base."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generator.formatting import NOTE, code, plain, table, wrapped
from generator.preset_sources import SOURCES, Source
from voidrl.api import build_config
from voidrl.config import PIECES, to_json
from voidrl.protocols.presets import PRESETS
from voidrl.types import EnvSpec


def presets() -> str:
    """Return the page: what each preset is for, and how it differs from its base."""
    parts = [
        NOTE,
        "# Presets\n",
        wrapped(
            "Choose a named set of [config](config.md) values with `--preset NAME` on the command line or "
            '`preset="NAME"` in Python. Other options override the preset. The default is `atari-paper` for '
            "`atari/…` and `urlb-states` for `dmc/…`. Other environments have no preset."
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
    assert not notes, f"preset_sources has notes on fields that {name} does not change: {sorted(notes)}"
    return table(["field", "value", whose, "source or reason"], rows) + "\n"


def _spec(source: Source) -> EnvSpec:
    """Return the spec of an environment that the preset is for, which decides every `auto`."""
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
