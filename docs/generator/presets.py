"""docs/presets.md: the protocols and recipes as their files have them."""

from __future__ import annotations

from importlib.resources import files

from generator.formatting import NOTE, plain, table, wrapped
from voidrl import presets as protocols
from voidrl.presets.presets import AGENTS, PROTOCOLS

ABOUT = {
    "cpu": (
        "Made for any environment, on a CPU. It is taken by default where there is no GPU and the updates of "
        "100K steps would take one core more than an hour otherwise; `--preset none`, or the name of another "
        "preset, prevents that ([on a CPU](performance.md#on-a-cpu)). Its values are a start, not a finding: "
        "they were tried on Acrobot, CartPole and MountainCar for some thousand steps.",
        "voidrl pretrain CartPole-v1 --preset cpu",
    ),
    "maze-demo": (
        "Used by `voidrl demo`: small networks and batches, one update every four steps. The values were "
        "tuned on seeds 1 and 2 of the demo's maze ([limits](demo.md#what-it-does-not-show)).",
        "voidrl pretrain 'voidrl/PixelMaze-v0?size=13&loops=0.1' --preset maze-demo --steps 16k",
    ),
    "atari-paper": (
        "The paper's hyperparameters, with [our choices](paper.md#where-the-paper-contradicts-itself) where"
        " its tables are incomplete or contradict its text. It is the default for `atari/…`. On one H200 "
        "its 250M steps would take 8 days.",
        "voidrl pretrain atari/ms_pacman --preset atari-paper --engine compile",
    ),
    "atari-fast": (
        "For hours on one GPU instead of days. Steps are cheap and updates are not, so it makes 32 times "
        "fewer updates, on larger batches. APT has another f here than in the paper: 50 features by inverse "
        "and forward dynamics, on convolutions that Q shares, with standardized rewards and new heads for "
        "the task; `--representation simclr` has the paper's loss. Runs of it before 2026-11-16 are "
        "[invalid](../results/README.md#atari). Its 10M steps have not been run.",
        "voidrl pretrain atari/ms_pacman --preset atari-fast --engine compile",
    ),
    "atari-authors": (
        "What the authors' [released Atari code](https://github.com/forhaoliu/mini_apt) does with its "
        "published command ([differences](environments/atari.md#presets)). It has not been trained here "
        "beyond a test of a few updates.",
        "voidrl pretrain atari/ms_pacman --preset atari-authors --engine compile",
    ),
    "atari-demo": (
        "Shows how things work, not how well: narrow networks, small batches, and visited states are "
        "counted.",
        "voidrl pretrain atari/ms_pacman --preset atari-demo",
    ),
    "dmc-paper": (
        "The paper's hyperparameters for DMControl from pixels. The paper specifies neither the length of "
        "fine-tuning nor the encoder's hidden layer. We have not run it at full scale.",
        "voidrl pretrain dmc/walker --preset dmc-paper --engine compile",
    ),
    "dmc-fast": (
        "The paper's networks for less than an hour on one GPU: more parallel simulations, cheaper images, "
        "an eighth of the updates, half the batch size.",
        "voidrl pretrain dmc/walker --preset dmc-fast --engine compile",
    ),
    "urlb-states": (
        "The protocol of [URLB](https://arxiv.org/abs/2110.15191) and its code's APT, from states. It is "
        "the default for `dmc/…`. [DMControl](environments/dmcontrol.md#presets) lists the differences from"
        " URLB's code.",
        "voidrl pretrain dmc/walker --engine compile",
    ),
    "urlb-pixels": (
        "The same from images. A step repeats its action for two frames, so the step counts are halved.",
        "voidrl pretrain dmc/walker --preset urlb-pixels --engine compile",
    ),
}


def presets() -> str:
    """Every protocol and every recipe."""
    home = files(protocols)
    parts = [
        NOTE,
        "# Presets\n",
        wrapped(
            '`--preset NAME` on the command line, or `preset="NAME"` in Python, chooses a **protocol**: '
            "environment, learner, steps, fine-tuning, evaluation and the shape of the encoder f. A method "
            "adds its **recipe** for that protocol: its own values, and the representation that it needs. "
            "What you give yourself wins over both. A method without a recipe takes its defaults."
        ),
        wrapped(
            "`atari/…` takes `atari-paper` and `dmc/…` takes `urlb-states` unless you name another; other "
            "environments take the [defaults](config.md). On a CPU, where these would take too long, `cpu` "
            "takes their place. `voidrl config` shows the result, and where each "
            "value comes from ([configure a run](configuring.md)):"
        ),
        "```sh\nvoidrl config pretrain dmc/walker --method apt --learner.n-step 5\n```\n",
        wrapped(
            "Naming a piece changes that piece alone: `--representation fixed` keeps the shape of f, and "
            "`--learner sac` keeps the batch size. `voidrl train`, from scratch, takes its steps, updates, "
            "warm-up and learning rate from `finetune`, so that it can be compared with a fine-tuned agent."
        ),
        table(["preset", "for"], ([f"[{n}](#{n})", plain(p.about)] for n, p in PROTOCOLS.items())) + "\n",
        "[Agents](#agents) that learn from scratch, such as `drq` and `bbf`, are presets as well.\n",
    ]
    for name, preset in PROTOCOLS.items():
        text, command = ABOUT[name]
        lines = home.joinpath(f"{name}.toml").read_text("utf-8").splitlines()
        values = "\n".join(line for line in lines if not line.startswith("about =")).strip()
        parts += [f"## {name}\n", f"{preset.about}\n", wrapped(text), f"```sh\n{command}\n```\n"]
        parts += [f"```toml\n# protocols/{name}.toml\n{values}\n```\n"]
    parts += ["## Recipes\n", "A table is for one preset, or for all whose names begin with its word.\n"]
    for file in sorted(home.joinpath("recipes").iterdir(), key=lambda file: file.name):
        parts += [
            f"### {file.name.removesuffix('.toml')}\n",
            f"```toml\n# protocols/recipes/{file.name}\n{file.read_text('utf-8').strip()}\n```\n",
        ]
    common = home.joinpath("representations.toml").read_text("utf-8").strip()
    parts += ["### All methods\n", f"```toml\n# protocols/representations.toml\n{common}\n```\n"]
    return "\n".join([*parts, *_agents()])


def _agents() -> list[str]:
    """Every agent, and what agents have in common."""
    home = files(protocols).joinpath("agents")
    parts = [
        "## Agents\n",
        wrapped(
            "`voidrl train ENV --preset NAME` trains one of these [agents](agents/index.md) from scratch. "
            "The values of a file hold in all its families of environments; a table `atari`, `dmc`, `maze` "
            "(PixelMaze) or `any` (other environments) is for one of them, and `atari+pong`, `dmc+walker` "
            "or `dmc+walker_run` for one game, domain or task. A file adds to what it `extends`. Methods "
            "have no recipes for agents."
        ),
        table(["preset", "agent"], ([f"[{n}](#{n})", plain(a.about)] for n, a in AGENTS.items())) + "\n",
    ]
    shared = {"Common to discrete actions": "_discrete", "Common to DMControl from pixels": "_pixels"}
    for title, name in [*shared.items(), *((name, name) for name in AGENTS)]:
        text = home.joinpath(f"{name}.toml").read_text("utf-8")
        values = "\n".join(line for line in text.splitlines() if not line.startswith("about =")).strip()
        parts += [f"### {title}\n", f"```toml\n# protocols/agents/{name}.toml\n{values}\n```\n"]
    return parts
