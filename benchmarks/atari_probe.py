"""Rank representations on stored play: what f sees of the true state, and what the k-NN reward pays for.

    python benchmarks/atari_probe.py --json results/atari/probe.json --cache /tmp/play
    python benchmarks/atari_probe.py --device cuda --width 1.0 --updates 3000 --threads 8 --json probe.json

Of each game some thousand steps are stored, half of them of uniform random actions, half of random actions
that are held for a geometric number of steps. Each representation is trained on these frames by its own loss
as the agent trains it, without the learner. Then linear probes read the true variables and the task's reward
from f, and APT's reward of every stored state is compared with the rarity of the cell it lies in: of the
variables that the player controls, of the others, and of all.

A row is printed and written when it is done; rows that the file already has are not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.agent import Agent
from voidrl.agent.agent import JointLoss
from voidrl.engine.engine import Engine
from voidrl.nets.layers import Linear
from voidrl.presets.presets import preset_values
from voidrl.probing.linear import Split, reward_f1, ridge_r2, split_rows
from voidrl.probing.play import Play, collect
from voidrl.probing.reward import Cells, cells, dependence, noise_ratio, rarity_columns
from voidrl.replay import Replay
from voidrl.system.device import placed
from voidrl.training.build import build_config
from voidrl.types import EnvSpec, Metrics

GAMES = ("freeway", "ms_pacman", "boxing", "assault", "krull")
POOLS = (256, 1024, 4096)
NEIGHBORS = 5
ENVS = 8
DRAWS = 3  # of particles, in each of which all states are scored
ENCODED_AT_ONCE = 500
DIRECT_WIDTH = 64  # up to here distances are those of differences, above they are those of products
TABLE = "{:<26} {:>5} | {:>5} {:>5} {:>5} | {:>17} | {:>17} | {:>17} | {:>11} {:>11} | {:>14}"


@dataclass(frozen=True)
class Variant:
    """A representation as changes to the preset `atari-fast`, and the layers of f that are probed."""

    name: str
    changes: dict[str, Any]
    spaces: tuple[str, ...] = ("z", "convolutions")
    trained: bool = True


def own(name: str, loss: str, dim: int, *spaces: str, **options: Any) -> Variant:
    """A representation whose encoder is the preset's except for the width of z."""
    encoder = {**PRESET_ENCODER, "feature_dim": dim, **options.pop("encoder", {})}
    changes = {"representation": {"name": loss, "encoder": encoder, **options}}
    return Variant(name, changes, spaces or ("z",), trained=loss != "fixed")


def convolutional(name: str, loss: str, **options: Any) -> Variant:
    """A representation of nothing but convolutions, those of the learner's encoder."""
    return own(name, loss, 0, encoder={"hidden_dim": 0, **LEARNER_ENCODER}, **options)


PRESET_ENCODER = preset_values("atari-fast")["representation"]["encoder"]
WARMUP_UPDATES = preset_values("atari-fast")["representation"]["warmup_updates"]
LEARNER_ENCODER = {"activation": "relu", "spectral_norm_iterations": 0}
ALL = ("z", "linear", "hidden", "convolutions")
VARIANTS = (
    Variant("pixels 21×21", {}, ("pixels",), trained=False),
    own("fixed-5", "fixed", 5),
    own("fixed-50", "fixed", 50, "z", "convolutions"),
    own("simclr-5", "simclr", 5, *ALL),  # the preset as it is
    own("simclr+inverse-50", "combined", 50, "z", "convolutions", losses=("simclr", "inverse")),
    convolutional("sgi conv", "sgi"),
    convolutional("spr conv", "spr", momentum=0.99),
    own("icm-50", "icm", 50, "z", "convolutions"),
    own("simclr-50", "simclr", 50, "z", "convolutions"),
    convolutional("simclr conv", "simclr"),
    own("atc-256", "atc", 256, "z", "convolutions"),
    convolutional("curl conv", "curl", momentum=0.99),  # 0.999 hardly moves in some hundred updates
    convolutional("inverse conv", "icm", forward_weight=0.0),
    own("simclr-15", "simclr", 15),
    own("simclr-512", "simclr", 512),
    own("icm-512", "icm", 512),
    own("fixed-512", "fixed", 512),
)


class RepresentationAgent(Agent):
    """An agent whose updates are those of its representation alone."""

    def step(self, replay: Replay, index: int = 0) -> Metrics:
        """One update of f."""
        with self.precision():
            segment = replay.segment(replay.sample(self.config.representation.batch_size), 1, 1.0)
            metrics = self.train_representation(replay, segment, JointLoss())
            self.representation.after_update()
            return metrics


def make_agent(spec: EnvSpec, of: Variant, options: argparse.Namespace, device: torch.device) -> Agent:
    """The agent of the preset with this representation, narrower and with smaller batches."""
    wide = of.changes.get("representation", {}).get("encoder", PRESET_ENCODER)["hidden_dim"]
    common = {
        "representation": {
            "batch_size": options.batch_size,
            "learning_rate": options.learning_rate,
            # Rising slowly, or contrast on frames that differ in a few pixels stays at chance.
            "warmup_updates": min(WARMUP_UPDATES, options.updates * 5 // 6),
            "encoder": {"width": options.width, "hidden_dim": round(wide * options.width)},
        },
        "learner": {"encoder": {"width": options.width}},
        "encoder_trainers": ("representation",) if of.trained else (),
    }
    config = build_config(spec, [preset_values("atari-fast"), of.changes, common])
    return RepresentationAgent(spec, config, device)


# Stored play


class Stored(NamedTuple):
    """Play of one game, its frames on the device, and what all representations are compared by."""

    game: str
    play: Play
    replay: Replay
    slots: Tensor  # (m,) of all states, each once
    before: Tensor  # (n,) which of them each step was taken in
    after: Tensor  # (n,) and which it led to, the one that APT rewards
    split: Split
    by_episode: np.ndarray  # (n,) the steps, episode by episode
    cells: dict[str, Cells]  # of the steps in this order

    @property
    def controllable(self) -> np.ndarray:
        """(V,) whether the player controls a variable."""
        return np.array([variable.controllable for variable in self.play.variables])


def store(game: str, options: argparse.Namespace, device: torch.device) -> Stored:
    """Play a game, or read play that was kept, and put it on the device."""
    file = options.cache / f"{game}-{options.steps}-{options.seed}.safetensors" if options.cache else None
    if file and file.exists():
        play = Play.load(file)
    else:
        play = collect(f"atari/{game}", options.steps, ("random", "sticky"), options.seed, num_envs=ENVS)
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            play.save(file)
    replay = play.replay
    if device.type != "cpu":
        replay = Replay(play.spec, ENVS, (replay.rows - play.spec.frame_stack) * ENVS, 0, device, device)
        replay.load(play.replay.state(), ((name, tag, part()) for name, tag, part in play.replay.chunks()))
    slots, index = np.unique(np.concatenate([play.slots, play.next_slots]), return_inverse=True)
    states = (torch.from_numpy(part).to(device) for part in (slots, *np.split(index, 2)))
    order = np.argsort(play.episode, kind="stable")
    return Stored(game, play, replay, *states, split_rows(play.episode), order, cells_of(play, order))


def cells_of(play: Play, order: np.ndarray) -> dict[str, Cells]:
    """The cells of what the player controls, of everything else and of all variables that vary."""
    state = play.state[order]
    names = [variable.name for variable in play.variables]
    own = [variable.controllable for variable in play.variables]
    varies = state.std(0) > 0
    other = ~np.array(own) & varies
    return {
        "own": cells(state[:, rarity_columns(names, own)]),
        "other": cells(state[:, other]),
        "all": cells(state[:, varies]),
    }


# What is measured


@torch.no_grad()
def encode(agent: Agent, replay: Replay, slots: Tensor, wanted: tuple[str, ...]) -> dict[str, Tensor]:
    """The layers of f by name, (n, d) each: `convolutions`, `hidden`, `linear` (before LayerNorm) and `z`."""
    if wanted == ("pixels",):
        newest = replay.frames.index_select(0, slots.to(replay.frames.device))  # (n, 1, 84, 84)
        return {"pixels": F.avg_pool2d(newest.float() / 255, 4).flatten(1)}
    found: dict[str, list[Tensor]] = {name: [] for name in wanted}
    encoder = agent.representation.encoder
    assert encoder is not None
    for part in slots.split(ENCODED_AT_ONCE):
        with agent.precision():
            x = encoder.latent(replay.observations(part))
            layers = {"convolutions": x}
            for i, layer in enumerate(encoder.trunk):
                x = layer(x)
                after = encoder.trunk[i + 1 :]
                if isinstance(layer, Linear) and not any(isinstance(later, Linear) for later in after):
                    layers["linear"] = x
                elif not isinstance(layer, Linear) and any(isinstance(later, Linear) for later in after):
                    layers["hidden"] = x
            layers["z"] = x
        for name in wanted:
            found[name].append(layers[name].flatten(1).float())
    return {name: torch.cat(parts) for name, parts in found.items()}


def pool_rewards(z: Tensor, play: Play, gap_steps: int, seed: int) -> dict[int, np.ndarray]:
    """(DRAWS, n) for each pool: APT's reward of all states among as many others, drawn from all of them.

    A state is not its own neighbor, nor is one fewer than `gap_steps` before or after it: a replay of
    hundreds of thousands of steps would hardly ever draw them, a small one does.
    """
    n = len(z)
    z = z - z.mean(0)
    rng = np.random.default_rng(seed)
    columns = {
        pool: [torch.from_numpy(rng.permutation(n)[:pool]).to(z.device) for _ in range(DRAWS)]
        for pool in POOLS
    }
    episode, time = (torch.from_numpy(at).to(z.device) for at in (play.episode, play.episode_step))
    direct = z.shape[1] <= DIRECT_WIDTH or z.is_cuda
    mode = "donot_use_mm_for_euclid_dist" if direct else "use_mm_for_euclid_dist"
    found: dict[int, list[list[Tensor]]] = {pool: [[] for _ in range(DRAWS)] for pool in POOLS}
    for rows in torch.arange(n, device=z.device).split(ENCODED_AT_ONCE):
        distance = torch.cdist(z[rows], z, compute_mode=mode)  # (q, n)
        near = (time[rows, None] - time).abs() < max(1, gap_steps)
        distance.masked_fill_(near & (episode[rows, None] == episode), torch.inf)
        for pool in POOLS:
            for i, index in enumerate(columns[pool]):
                nearest = distance.index_select(1, index).topk(NEIGHBORS, largest=False).values
                found[pool][i].append(nearest.mean(1).log1p())
    return {pool: torch.stack([torch.cat(row) for row in rows]).cpu().numpy() for pool, rows in found.items()}


def reward_row(scores: np.ndarray, stored: Stored) -> dict[str, float]:
    """What rewards (DRAWS, n) depend on, the mean over draws; for what is not the player's, of one draw."""
    row: dict[str, float] = {"noise": noise_ratio(scores)}
    ordered = scores[:, stored.by_episode]
    for whose, found in stored.cells.items():
        each = [dependence(reward, found) for reward in (ordered if whose == "own" else ordered[:1])]
        for name in ("correlation", "mean_correlation", "effect", "share"):
            row[f"{whose}_{name}"] = float(np.mean([getattr(one, name) for one in each]))
    return row


def probe(stored: Stored, encoded: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is measured of one space, given all states in it, (m, d)."""
    play, own = stored.play, stored.controllable
    z = encoded[stored.after]
    r2 = ridge_r2(z, play.state, stored.split)
    scores = reward_f1(encoded[stored.before], z, play.reward, stored.split)
    return {
        "dim": z.shape[1],
        "r2": {v.name: round(float(value), 4) for v, value in zip(play.variables, r2, strict=True)},
        "r2_own": mean_r2(r2[own]),
        "r2_other": mean_r2(r2[~own]),
        "r2_all": mean_r2(r2),
        "reward_f1": None if scores is None else scores.mean,
        "reward_f1_chance": None if scores is None else scores.mean_chance,
        "pools": {
            str(pool): reward_row(rewards, stored)
            for pool, rewards in pool_rewards(z, play, options.gap_steps, options.seed).items()
        },
    }


def mean_r2(values: np.ndarray) -> float:
    """The mean over variables that vary, where a probe worse than the mean counts as 0."""
    return float(np.nanmean(values.clip(min=0))) if np.isfinite(values).any() else float("nan")


# The study


def rows_of(
    stored: Stored, of: Variant, options: argparse.Namespace, known: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Train one representation and probe its spaces."""
    device = stored.replay.device
    torch.manual_seed(options.seed)
    agent = make_agent(stored.replay.spec, of, options, device)
    began = time.perf_counter()
    training: dict[str, float] = {}
    if of.trained:
        engine = Engine(agent, stored.replay, lambda text: None)
        tail = max(1, options.updates // 10)
        engine.update(0, options.updates - tail)
        engine.metrics.flush()
        engine.update(options.updates - tail, tail)
        training = {k: round(v, 4) for k, v in engine.metrics.flush().items() if "/" not in k}
    seconds = time.perf_counter() - began
    agent.eval()
    for space, z in encode(agent, stored.replay, stored.slots, of.spaces).items():
        began = time.perf_counter()
        row = {**known, "representation": of.name, "space": space}
        row |= {"updates": options.updates if of.trained else 0, "training": training}
        row |= probe(stored, z, options)
        yield row | {
            "train_seconds": round(seconds, 1),
            "probe_seconds": round(time.perf_counter() - began, 1),
        }


def line(row: dict[str, Any]) -> str:
    """A row of the printed table."""

    def number(value: float | None) -> str:
        return "–" if value is None or value != value else f"{value:.2f}".replace("-", "−")

    def over_pools(key: str) -> str:
        return " ".join(number(row["pools"][str(pool)][key]) for pool in POOLS)

    last = row["pools"][str(POOLS[-1])]
    name = row["representation"] + ("" if row["space"] in ("z", "pixels") else f", {row['space']}")
    return TABLE.format(
        name,
        row["dim"],
        *(number(row[key]) for key in ("r2_own", "r2_other", "reward_f1")),
        over_pools("own_correlation"),
        over_pools("own_mean_correlation"),
        over_pools("own_share"),
        *(
            " ".join(number(last[f"{whose}_{key}"]) for key in ("correlation", "share"))
            for whose in ("other", "all")
        ),
        over_pools("noise"),
    )


HEADER = TABLE.format(
    "representation",
    "dim",
    *("R² own", "other", "F1"),
    *("ρ own " + "/".join(map(str, POOLS)), "E[r|cell]", "η² own"),
    *("ρ η² other", "ρ η² all"),
    "noise",
)


def main() -> None:
    """Store play, train, probe, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", nargs="+", default=GAMES, metavar="GAME")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="representations, by the names in VARIANTS")
    parser.add_argument("--steps", type=int, default=8000, help="of stored play, per game")
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--width", type=float, default=0.5, help="of the convolutions")
    parser.add_argument("--gap-steps", type=int, default=0, help="states nearer in time are no neighbors")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--json", type=Path, help="rows are added to this file")
    parser.add_argument("--cache", type=Path, help="folder in which play is kept")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    if options.json and options.json.exists():
        rows = json.loads(options.json.read_text())
    with placed(options.device, options.seed) as device:
        for game in options.games:
            study(game, options, device, rows)


def study(game: str, options: argparse.Namespace, device: torch.device, rows: list[dict[str, Any]]) -> None:
    """All representations on one game; new rows are added to `rows` and to the file."""
    known = {
        "game": game,
        "steps": options.steps,
        "batch_size": options.batch_size,
        "learning_rate": options.learning_rate,
        "width": options.width,
        "gap_steps": options.gap_steps,
        "seed": options.seed,
        "device": device.type,
    }

    def is_done(of: Variant) -> bool:
        wanted = {**known, "representation": of.name, "updates": options.updates if of.trained else 0}
        spaces = {row["space"] for row in rows if wanted.items() <= row.items()}
        return spaces >= set(of.spaces)

    missing = [of for of in VARIANTS if (not options.only or of.name in options.only) and not is_done(of)]
    if not missing:
        return
    stored = store(game, options, device)
    shown = ", ".join(
        f"{whose} {one.count}{' additive' if one.additive else ''}" for whose, one in stored.cells.items()
    )
    own = ", ".join(v.name for v in stored.play.variables if v.controllable)
    episodes = len(np.unique(stored.play.episode))
    print(f"\n{game}: {len(stored.play)} steps, {episodes} episodes, controllable: {own}; cells: {shown}")
    print(HEADER, flush=True)
    for of in missing:
        for row in rows_of(stored, of, options, known):
            rows.append(row)
            print(line(row), flush=True)
            if options.json:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
