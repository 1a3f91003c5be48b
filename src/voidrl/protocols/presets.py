"""Named sets of config values.

`atari-paper` and `dmc-paper` spell out what the paper's tables give, and what we read where it is silent or
contradicts itself: f on Atari is the Q network's stack (table), not IMPALA (text); its hidden layer of 1024
is used on DMControl too, for which the paper has no table of its own; "layers 3" of the DMControl actor is
read as in DrQ, two hidden layers; ε of DQN ends at 0.05, in evaluations it is 0.001; α of SAC begins at 0.1;
"k searched in {3, 5, 10}" is 5. "5M environment steps" on DMControl are steps of the agent, as the paper
counts them on Atari; how long fine-tuning is there it does not say: 500K steps are ours.

`urlb-states` and `urlb-pixels` follow the protocol of URLB (Laskin et al. 2021) and its code's APT.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from voidrl.envs.ids import ATARI, DMC
from voidrl.errors import UnknownNameError


class Preset(NamedTuple):
    """Values for a purpose."""

    about: str
    values: dict[str, Any]


PAPER_APT = {
    "name": "apt",
    "k": 5,
    "c": 1.0,
    "distance_power": 1.0,
    "average": True,
    "include_self": False,
    "neighbors": "nearest",
    "particle": "next",
    "pool": 0,
    "normalize": "reward_mean",
    "mean_momentum": None,
}

PAPER_CONTRAST = {
    "name": "simclr",
    "temperature": 0.1,
    "projection_hidden": 128,
    "projection_dim": 64,
    "decoupled": False,
}

ATARI_PAPER: dict[str, Any] = {
    "env": {"num_envs": 1, "frame_stack": 4},
    "steps": 250_000_000,
    "warmup_steps": 1600,
    "updates_per_step": 2.0,
    "share_encoder": "nothing",
    "encoder_trainers": ("representation",),
    "augment": {"shift_pixels": 4, "intensity_scale": 0.05},
    "replay": {"capacity_steps": 1_000_000},
    "method": PAPER_APT,
    "representation": {
        **PAPER_CONTRAST,
        "learning_rate": 1e-3,
        "warmup_updates": 1000,
        "batch_size": 512,
        "encoder": {
            "stack": "nature",
            "activation": "elu",
            "feature_dim": 5,
            "hidden_dim": 1024,
            "spectral_norm_iterations": 5,
        },
    },
    "learner": {
        "name": "dqn",
        "batch_size": 32,
        "discount": 0.99,
        "n_step": 10,
        "intrinsic_n_step": "summed",
        "learning_rate": 1e-4,
        "adam_eps": 1.5e-4,
        "max_grad_norm": 10.0,
        "double": True,
        "dueling": True,
        "target_tau": 1.0,
        "target_every_updates": 1,
        "hidden_dim": 512,
        "hidden_layers": 1,
        "epsilon_start": 1.0,
        "epsilon_end": 0.05,
        "epsilon_decay_steps": 2500,
        "encoder": {"stack": "nature", "activation": "relu", "feature_dim": 0},
    },
    "finetune": {
        "steps": 100_000,
        "heads": "pretrained",
        "learning_rate": 1e-3,
        "warmup_steps": 1600,
        "warmup_actions": "policy",
        "noise": "end",
    },
    "log": {
        "log_every_steps": 10_000,
        "checkpoint_every_steps": 1_000_000,
        "eval_episodes": 32,
        "eval_epsilon": 0.001,
    },
}

# The paper's, except for what follows. Each deviation and its reason stands in docs/environments/atari.md.
ATARI_FAST: dict[str, Any] = {
    **ATARI_PAPER,
    "env": {"num_envs": 64, "frame_stack": 4},
    "steps": 10_000_000,
    "warmup_steps": 20_000,
    "updates_per_step": 0.0625,
    "replay": {"capacity_steps": 400_000},
    "representation": {**ATARI_PAPER["representation"], "batch_size": 256},
    "learner": {
        **ATARI_PAPER["learner"],
        "batch_size": 256,
        "n_step": 5,
        "learning_rate": 2.5e-4,
        "target_tau": 0.1,
    },
    "finetune": {**ATARI_PAPER["finetune"], "learning_rate": 2.5e-4, "updates_per_step": 0.125},
}

# Minutes on two CPU cores: see how it works, not how well. Narrow networks, small batches, few updates.
ATARI_DEMO: dict[str, Any] = {
    **ATARI_FAST,
    "env": {"num_envs": 16, "frame_stack": 4, "count_states": True},
    "steps": 12_000,
    "warmup_steps": 2000,
    "updates_per_step": 0.125,
    "replay": {"capacity_steps": 12_000},
    "representation": {
        **ATARI_PAPER["representation"],
        "batch_size": 32,
        "warmup_updates": 500,
        "encoder": {**ATARI_PAPER["representation"]["encoder"], "hidden_dim": 256, "width": 0.5},
    },
    "learner": {
        **ATARI_FAST["learner"],
        "batch_size": 32,
        "n_step": 3,
        "encoder": {**ATARI_PAPER["learner"]["encoder"], "width": 0.5},
        "hidden_dim": 256,
        "epsilon_decay_steps": 4000,
    },
    "finetune": {**ATARI_FAST["finetune"], "steps": 20_000},
    "log": {**ATARI_PAPER["log"], "log_every_steps": 1000, "tensorboard": False},
}

DMC_PAPER: dict[str, Any] = {
    "env": {"num_envs": 1, "frame_stack": 3, "dmc": {"observation": "pixels", "action_repeat": 0}},
    "steps": 5_000_000,
    "warmup_steps": 1000,
    "updates_per_step": 2.0,
    "share_encoder": "all",
    "encoder_trainers": ("representation",),
    "augment": {"shift_pixels": 4, "intensity_scale": 0.0},
    "replay": {"capacity_steps": 100_000},
    "method": PAPER_APT,
    "representation": {
        **PAPER_CONTRAST,
        "learning_rate": 1e-3,
        "batch_size": 512,
        "encoder": {
            "stack": "paper",
            "activation": "elu",
            "feature_dim": 15,
            "hidden_dim": 1024,
            "spectral_norm_iterations": 5,
        },
    },
    "learner": {
        "name": "sac",
        "batch_size": 512,
        "discount": 0.99,
        "n_step": 1,
        "learning_rate": 1e-3,
        "hidden_dim": 1024,
        "hidden_layers": 2,
        "actor_every_updates": 2,
        "target_every_updates": 2,
        "target_tau": 0.01,
        "log_std_min": -10.0,
        "log_std_max": 2.0,
        "initial_temperature": 0.1,
    },
    "finetune": {
        "steps": 500_000,
        "heads": "pretrained",
        "warmup_steps": 1000,
        "warmup_actions": "random",
    },
    "log": {"log_every_steps": 5000, "checkpoint_every_steps": 250_000, "eval_episodes": 10},
}

# The paper's for less than an hour of one GPU: more environments at once, cheaper images, an eighth of the
# updates, half the batches.
DMC_FAST: dict[str, Any] = {
    **DMC_PAPER,
    "env": {**DMC_PAPER["env"], "num_envs": 16, "dmc": {"observation": "pixels", "render_quality": "fast"}},
    "steps": 1_000_000,
    "warmup_steps": 4000,
    "updates_per_step": 0.25,
    "representation": {**DMC_PAPER["representation"], "batch_size": 256},
    "learner": {**DMC_PAPER["learner"], "batch_size": 256},
    "finetune": {**DMC_PAPER["finetune"], "steps": 100_000},
}

# As URLB's code has it: distances over their own running mean, the particle among its own 12 neighbors, f(s)
# of n-step transitions scored. There 1e-4 is taken off each distance as well: nothing, where their mean is 1.
URLB_APT = {
    **PAPER_APT,
    "k": 12,
    "include_self": True,
    "particle": "current",
    "normalize": "distance_mean",
}

# Eight environments in place of URLB's one, and as many updates per step as there: one every second step.
URLB_STATES: dict[str, Any] = {
    "env": {"num_envs": 8, "dmc": {"observation": "states", "action_repeat": 1}},
    "steps": 2_000_000,
    "warmup_steps": 4000,
    "updates_per_step": 0.5,
    "share_encoder": "nothing",
    "replay": {"capacity_steps": 1_000_000},
    "method": URLB_APT,
    "representation": {
        "name": "icm",
        "learning_rate": 1e-4,
        "batch_size": 0,
        "hidden_dim": 1024,
        "encoder": {"stack": "mlp", "feature_dim": 512, "hidden_dim": 0},
    },
    "learner": {
        "name": "ddpg",
        "batch_size": 1024,
        "discount": 0.99,
        "n_step": 3,
        "intrinsic_n_step": "single",
        "learning_rate": 1e-4,
        "hidden_dim": 1024,
        "hidden_layers": 1,
        "trunk_dim": 1024,
        "target_tau": 0.01,
        "target_every_updates": 1,
        "actor_every_updates": 1,
        "stddev_start": 0.2,
        "stddev_end": 0.2,
        "noise_clip": 0.3,
        "encoder": {"stack": "mlp", "feature_dim": 0, "hidden_dim": 0},
    },
    "finetune": {
        "steps": 100_000,
        "heads": "actor",
        "warmup_steps": 4000,
        "warmup_actions": "random",
        "noise": "end",
    },
    "log": {
        "log_every_steps": 10_000,
        "checkpoint_every_steps": 500_000,
        "snapshot_steps": (100_000, 500_000, 1_000_000, 2_000_000),
        "eval_episodes": 10,
    },
}

# A step holds its action for two of URLB's frames, so its numbers are halved. f is learned by contrast, as in
# the paper, and is the trunk of actor and critic; URLB's code has dynamics and two trunks here as well. The
# replay of 500K frames, 21 KB each, takes 10.6 GB of a GPU; URLB keeps 1M on disk.
URLB_PIXELS: dict[str, Any] = {
    **URLB_STATES,
    "env": {"num_envs": 8, "frame_stack": 3, "dmc": {"observation": "pixels", "action_repeat": 2}},
    "steps": 1_000_000,
    "warmup_steps": 2000,
    "share_encoder": "all",
    "encoder_trainers": ("representation",),
    "augment": {"shift_pixels": 4, "intensity_scale": 0.0},
    "replay": {"capacity_steps": 500_000},
    "representation": {
        **PAPER_CONTRAST,
        "learning_rate": 1e-4,
        "batch_size": 256,
        "encoder": {"stack": "drq", "activation": "relu", "feature_dim": 50, "hidden_dim": 0},
    },
    "learner": {
        **{key: value for key, value in URLB_STATES["learner"].items() if key != "encoder"},
        "batch_size": 256,
        "hidden_layers": 2,
        "trunk_dim": 0,
    },
    "finetune": {**URLB_STATES["finetune"], "steps": 50_000, "warmup_steps": 2000},
    "log": {
        **URLB_STATES["log"],
        "log_every_steps": 5000,
        "checkpoint_every_steps": 250_000,
        "snapshot_steps": (50_000, 250_000, 500_000, 1_000_000),
    },
}

DEMO_ENV = "voidrl/PixelMaze-v0?size=13&loops=0.1&layout_seed=3&image_size=39"

# Minutes on two CPU cores, so: small networks and batches, one update every few steps instead of two a step.
# A shift of 1 pixel is a third of a cell. Longer returns and a fast target carry reward through corridors.
# The mean reward drifts as f learns, so its estimate forgets. Evaluation keeps a little noise, without which
# every episode of a deterministic maze would be the same.
MAZE_DEMO = {
    "env": {"num_envs": 16},
    "warmup_steps": 1000,
    "updates_per_step": 0.25,
    "reward_scale": 5.0,
    "augment": {"shift_pixels": 1},
    "method": {"name": "apt", "k": 5, "mean_momentum": 0.99},
    "representation": {"name": "simclr", "batch_size": 64, "encoder": {"width": 0.5}},
    "learner": {
        "name": "dqn",
        "batch_size": 64,
        "n_step": 5,
        "discount": 0.96,
        "learning_rate": 5e-4,
        "hidden_dim": 256,
        "target_tau": 0.05,
        "epsilon_decay_steps": 2000,
        "epsilon_end": 0.2,
    },
    "finetune": {"warmup_steps": 2000},
    "log": {"log_every_steps": 500, "eval_episodes": 32, "eval_epsilon": 0.05, "tensorboard": False},
}

PRESETS = {
    "maze-demo": Preset("PixelMaze in minutes on two CPU cores; what the demo runs.", MAZE_DEMO),
    "atari-paper": Preset("The paper's tables for Atari: DQN, a separate encoder, 250M steps.", ATARI_PAPER),
    "atari-fast": Preset("Atari for hours of one GPU: 64 games, larger batches, fewer updates.", ATARI_FAST),
    "atari-demo": Preset("Atari in minutes on two CPU cores: small networks, states counted.", ATARI_DEMO),
    "dmc-paper": Preset("The paper's tables for DMControl: pixels, SAC, one encoder, 5M steps.", DMC_PAPER),
    "dmc-fast": Preset("DMControl from pixels for less than an hour of one GPU: fewer updates.", DMC_FAST),
    "urlb-states": Preset("URLB from states: DDPG, f by dynamics, 2M steps; default for dmc/….", URLB_STATES),
    "urlb-pixels": Preset("URLB from pixels: DDPG, f by contrast, 1M steps of two frames.", URLB_PIXELS),
}


def preset(name: str | None) -> dict[str, Any]:
    """The values of a preset; none for None."""
    if name is None:
        return {}
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return PRESETS[name].values


def preset_for(env: object, name: str | None, phase: str) -> dict[str, Any]:
    """The values of a preset, or of the environment's own; options of DMControl are for DMControl alone.

    From scratch an agent is trained as one is fine-tuned, with which it is compared.
    """
    values = preset(name or default_preset(env))
    tuning = values.get("finetune", {})
    if phase == "train" and "steps" in tuning:
        given = {key: tuning[key] for key in ("steps", "updates_per_step", "warmup_steps") if key in tuning}
        values = {**values, **given, "log": {**values["log"], "snapshot_steps": ()}}
    if isinstance(env, str) and env.startswith(DMC):
        return values
    rest = {key: value for key, value in values.get("env", {}).items() if key != "dmc"}
    return {**values, "env": rest}


def default_preset(env: object) -> str | None:
    """What an environment is run with unless something else is asked for."""
    if not isinstance(env, str):
        return None
    return "atari-paper" if env.startswith(ATARI) else "urlb-states" if env.startswith(DMC) else None
