"""docs/presets.md: presets, recipes and agents, by the values that tell them apart."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from generator.formatting import NOTE, code, plain, table, wrapped
from voidrl import presets as package
from voidrl.config import flat
from voidrl.presets.presets import AGENTS, EXAMPLES, NAMES, PRESETS, recipe

FILES = "../src/voidrl/presets"
ENVIRONMENTS = {"cpu": "any", "maze": "PixelMaze", "atari": "`atari/…`", "dmc": "`dmc/…`", "urlb": "`dmc/…`"}
COMPARED = {  # columns: the preset, and an environment of the family whose values it has there
    "Atari": [
        ("atari-paper", "atari"),
        ("atari-fast", "atari"),
        ("atari-demo", "atari"),
        ("atari-authors", "atari"),
    ],
    "DMControl": [("dmc-paper", "dmc"), ("dmc-fast", "dmc"), ("urlb-states", "dmc"), ("urlb-pixels", "dmc")],
    "CPU": [("cpu", "any"), ("cpu", "atari"), ("cpu", "dmc"), ("maze-demo", "maze")],
}
FIELDS = (
    *("steps", "warmup_steps", "updates_per_step", "env.num_envs", "env.frame_stack", "env.dmc.observation"),
    *("env.dmc.action_repeat", "replay.capacity_steps", "representation.encoder.stack"),
    *("representation.encoder.feature_dim", "learner.name", "learner.batch_size", "learner.discount"),
    *("learner.n_step", "learner.intrinsic_n_step", "learner.learning_rate", "learner.hidden_dim"),
    *("learner.target_tau", "finetune.steps", "finetune.learning_rate", "finetune.heads", "finetune.adapt"),
    *("log.eval_episodes",),
)
RECIPES = ("atari-paper", "dmc-paper", "urlb-states", "urlb-pixels", "maze-demo", "cpu")
BASES = {"_discrete": "Discrete actions, shared values.", "_pixels": "DMControl from pixels, shared values."}
NOT_SHOWN = ("about", "extends", "families", "log", "atari", "dmc", "maze", "any")  # of an agent's file


def presets() -> str:
    """Every preset, every recipe and every agent."""
    home = files(package)
    general = (
        [_file(name), plain(PRESETS[name].about), ENVIRONMENTS[name.partition("-")[0]], _base(home, name)]
        for name in NAMES
    )
    parts = [
        NOTE,
        "# Presets\n",
        wrapped(
            '`--preset NAME`, or `preset="NAME"` in Python, sets environment, learner, '
            "steps, fine-tuning, evaluation and the shape of the encoder f. A method adds its "
            "**recipe** for the preset. What you set wins over both. Each name below leads to its "
            "file, whose comments say why a value was chosen. `voidrl config` shows every value of a "
            "run, and its source ([configuring a run](configuring.md)):"
        ),
        "```sh\nvoidrl config pretrain dmc/walker --method apt --learner.n-step 5\n"
        "voidrl pretrain atari/ms_pacman --preset atari-fast --engine compile\n"
        "voidrl pretrain dmc/walker --preset urlb-pixels --engine compile\n"
        "voidrl pretrain CartPole-v1 --preset cpu\n```\n",
        wrapped(
            "`atari/…` takes `atari-paper` and `dmc/…` takes `urlb-states` by default; other "
            "environments take the [defaults](config.md). Where these would take a CPU core more than "
            "an hour for 100K steps, `cpu` takes their place; `--preset none` prevents that ([on a "
            "CPU](performance.md#on-a-cpu))."
        ),
        wrapped(
            "Naming a piece changes only that piece: `--representation fixed` keeps the shape of f, and"
            " `--learner sac` keeps the batch size. `voidrl train` takes steps, updates, warm-up and "
            "learning rate from `finetune`, for comparison with a fine-tuned agent."
        ),
        "## Values\n",
        table(["preset", "for", "environments", "base"], general) + "\n",
    ]
    for title, columns in COMPARED.items():
        heads = [f"{name} ({kind})" if name == "cpu" else name for name, kind in columns]
        values = [flat(PRESETS[name].values_for(EXAMPLES.get(kind, kind))) for name, kind in columns]
        rows = ([f"`{f}`", *(_value(v, f) for v in values)] for f in FIELDS if any(f in v for v in values))
        parts += [f"### {title}\n", table(["field", *heads], rows) + "\n"]
    parts += [
        "A dash stands for the field's [default](config.md).\n",
        "### Limits\n",
        wrapped(
            "`atari-fast`, `atari-authors` and `dmc-paper` have not been trained for all their steps. "
            "The values of `cpu` were tried on Acrobot, CartPole and MountainCar for some thousand "
            "steps. `maze-demo` was tuned on seeds 1 and 2 of the demo's maze. The paper does not give "
            "the length of fine-tuning on DMControl or the encoder's hidden layer there. "
            "[Atari](environments/atari.md#presets) and [DMControl](environments/dmcontrol.md#presets) "
            "list differences from the authors' and URLB's code."
        ),
        *_recipes(home),
        *_agents(home),
    ]
    return "\n".join(parts)


def _recipes(home: Any) -> Iterable[str]:
    names = sorted(file.name.removesuffix(".toml") for file in home.joinpath("recipes").iterdir())
    yield "## Recipes\n"
    yield wrapped(
        "Each cell has the representation in bold, if the recipe names one, and the values of `method.*` "
        "except learning rates and hidden widths; a dash has neither. Any method takes "
        f"`--representation simclr`, with the values of [representations.toml]({FILES}/representations.toml)."
    )
    rows = ([_file(name, "recipes/"), *(_recipe(name, preset) for preset in RECIPES)] for name in names)
    yield table(["method", *(f"`{name}`" for name in RECIPES)], rows) + "\n"
    yield "The other presets of a family have the values of the first, except:\n"
    others = [(base, n) for base in RECIPES[:2] for n in NAMES if n[:3] == base[:3] and n != base]
    rows = (
        [name, f"`{other}`", _recipe(name, other)]
        for name in names
        for base, other in others
        if _recipe(name, base) != _recipe(name, other)
    )
    yield table(["method", "preset", "values"], rows) + "\n"


def _recipe(method: str, preset: str) -> str:
    given = flat(recipe(method, preset))
    f = given.get("representation.name")
    own = {k.removeprefix("method."): v for k, v in given.items() if k.startswith("method.")}
    values = [f"`{k}={_short(v)}`" for k, v in own.items() if not k.endswith(("learning_rate", "hidden_dim"))]
    return ", ".join([*([f"**{f}**"] if f else []), *values]) or "–"


def _agents(home: Any) -> Iterable[str]:
    yield "## Agents\n"
    yield wrapped(
        "`voidrl train ENV --preset NAME` trains one of these [agents](agents.md) from scratch. The"
        " values are added to the base's. An agent's file also has tables for `atari`, `dmc`, "
        "`maze` (PixelMaze) and `any` other environment, and for single games and tasks; `_pixels` "
        "and `rad` have only a table `dmc`, shown here. Methods have no recipes for agents."
    )
    rows = []
    for name in (*BASES, *AGENTS):
        content = tomllib.loads(home.joinpath("agents", f"{name}.toml").read_text("utf-8"))
        about = AGENTS[name].about if name in AGENTS else BASES[name]
        kinds = ", ".join(AGENTS[name].families) if name in AGENTS else ""
        own = {key: value for key, value in content.items() if key.partition("+")[0] not in NOT_SHOWN}
        values = ", ".join(f"`{key}={_short(value)}`" for key, value in flat(own or content["dmc"]).items())
        rows.append([_file(name, "agents/"), plain(about), kinds, _base(home, "agents", name), values])
    yield table(["preset", "agent", "for", "base", "values"], rows) + "\n"


def _file(name: str, folder: str = "") -> str:
    return f"[{name}]({FILES}/{folder}{name}.toml)"


def _base(home: Any, *path: str) -> str:
    """The presets that a file extends."""
    base = tomllib.loads(home.joinpath(*path[:-1], f"{path[-1]}.toml").read_text("utf-8")).get("extends", ())
    return ", ".join(f"`{name}`" for name in ([base] if isinstance(base, str) else base)) or "–"


def _value(values: Mapping[str, Any], field: str) -> str:
    return code(values[field]) if field in values else "–"


def _short(value: object) -> str:
    return code(value).strip("`").replace(" ", "")
