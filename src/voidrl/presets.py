"""Named sets of config values. `paper-*` spell out every value of the paper's tables."""

from __future__ import annotations

from typing import Any

from voidrl.errors import UnknownNameError

PRESETS: dict[str, dict[str, Any]] = {
    "paper-discrete": {
        "env": {"frame_stack": 4},
        "warmup_steps": 1600,
        "updates_per_step": 2.0,
        "share_encoder": False,
        "augment": {"shift_pixels": 4, "intensity_scale": 0.05},
        "replay": {"capacity_steps": 1_000_000},
        "method": {"name": "apt", "k": 5, "c": 1.0, "distance_power": 1.0, "particle": "next", "normalise": "reward_mean"},
        "representation": {
            "name": "simclr",
            "temperature": 0.1,
            "projection_hidden": 128,
            "projection_dim": 64,
            "learning_rate": 1e-3,
            "batch_size": 512,
            "encoder": {
                "stack": "nature", "activation": "elu", "feature_dim": 5, "hidden_dim": 1024, "spectral_norm_iterations": 5,
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
            "epsilon_decay_steps": 2500,
            "encoder": {"stack": "nature", "activation": "relu", "feature_dim": 0},
        },
        "finetune": {"heads": "pretrained", "encoder": "tuned", "learning_rate": 1e-3, "warmup_steps": 1600},
    },
    "paper-continuous": {
        "env": {"frame_stack": 3},
        "warmup_steps": 1000,
        "updates_per_step": 2.0,
        "share_encoder": True,
        "encoder_owner": "representation",
        "augment": {"shift_pixels": 4, "intensity_scale": 0.0},
        "replay": {"capacity_steps": 100_000},
        "method": {"name": "apt", "k": 5, "c": 1.0, "distance_power": 1.0, "particle": "next", "normalise": "reward_mean"},
        "representation": {
            "name": "simclr",
            "temperature": 0.1,
            "projection_hidden": 128,
            "projection_dim": 64,
            "learning_rate": 1e-3,
            "batch_size": 512,
            "encoder": {
                "stack": "paper", "activation": "elu", "feature_dim": 15, "hidden_dim": 0, "spectral_norm_iterations": 5,
            },
        },
        "learner": {
            "name": "sac",
            "batch_size": 512,
            "discount": 0.99,
            "n_step": 1,
            "learning_rate": 1e-3,
            "hidden_dim": 1024,
            "hidden_layers": 3,
            "actor_every_updates": 2,
            "target_every_updates": 2,
            "target_tau": 0.01,
            "log_std_min": -10.0,
            "log_std_max": 2.0,
        },
        "finetune": {"heads": "pretrained", "encoder": "tuned", "warmup_steps": 1000, "warmup_actions": "random"},
    },
}  # fmt: skip


def preset(name: str | None) -> dict[str, Any]:
    """The values of a preset; none for None."""
    if name is None:
        return {}
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return PRESETS[name]
