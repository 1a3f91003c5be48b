"""Networks: encoders, heads, layers and targets."""

from voidrl.nets.contrast import info_nce, top1_hits
from voidrl.nets.encoder import Encoder
from voidrl.nets.heads import DuelingQ, TwinQ
from voidrl.nets.layers import (
    FullPrecisionLinear,
    Linear,
    TF32Linear,
    init_orthogonal,
    join,
    mlp,
    unit_vectors,
)
from voidrl.nets.successor import SuccessorCritic, successor_critic
from voidrl.nets.targets import polyak_update, target_copy

__all__ = [
    "DuelingQ",
    "Encoder",
    "FullPrecisionLinear",
    "Linear",
    "SuccessorCritic",
    "TF32Linear",
    "TwinQ",
    "info_nce",
    "init_orthogonal",
    "join",
    "mlp",
    "polyak_update",
    "successor_critic",
    "target_copy",
    "top1_hits",
    "unit_vectors",
]
