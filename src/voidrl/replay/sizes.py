"""The number of rows of a replay, and the memory it takes."""

from __future__ import annotations

import math

from voidrl.types import EnvSpec

CHUNK_BYTES = 64 * 2**20


def chunk_row_count(spec: EnvSpec, num_envs: int, skill_dim: int) -> int:
    """Rows in a chunk of a checkpoint."""
    return max(1, CHUNK_BYTES // (num_envs * slot_bytes(spec, skill_dim)))


def row_count(capacity_steps: int, num_envs: int, spec: EnvSpec) -> int:
    """Rows of the ring: the steps asked for, and room for the newest frames and a full stack."""
    return max(-(-capacity_steps // num_envs), spec.frame_stack + 1) + spec.frame_stack


def slot_bytes(spec: EnvSpec, skill_dim: int, *, note_dim: int = 0, prioritized: bool = False) -> int:
    """Memory of one slot."""
    action, priority = 8 if spec.discrete else 4 * spec.action_dim, 8 if prioritized else 0
    return frame_bytes(spec) + action + 4 + 1 + 4 + 4 * (skill_dim + note_dim) + 8 + priority


def frame_bytes(spec: EnvSpec) -> int:
    """Memory of one frame."""
    return math.prod(spec.stored_shape) * (1 if spec.pixels else 4)
