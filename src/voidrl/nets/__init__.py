"""Networks: encoders, heads, layers and targets."""

from voidrl.nets.contrast import info_nce, top1_accuracy, top1_hits
from voidrl.nets.encoder import STACKS, ConvStack, Encoder, check_convolutions
from voidrl.nets.heads import DuelingQ, TrunkQ, TwinQ
from voidrl.nets.layers import (
    Conv,
    EnsembleLinear,
    FullPrecisionLayerNorm,
    FullPrecisionLinear,
    Linear,
    TF32Linear,
    action_vectors,
    init_orthogonal,
    join,
    mlp,
    rescale,
    scale_gradient,
    trunk,
    unit_vectors,
)
from voidrl.nets.noisy import NoisyLinear, redraw_noise, silence
from voidrl.nets.successor import SuccessorCritic, SuccessorDuelingQ, successor_critic
from voidrl.nets.targets import polyak_update, target_copy

__all__ = [
    "STACKS",
    "Conv",
    "ConvStack",
    "DuelingQ",
    "Encoder",
    "EnsembleLinear",
    "FullPrecisionLayerNorm",
    "FullPrecisionLinear",
    "Linear",
    "NoisyLinear",
    "SuccessorCritic",
    "SuccessorDuelingQ",
    "TF32Linear",
    "TrunkQ",
    "TwinQ",
    "action_vectors",
    "check_convolutions",
    "info_nce",
    "init_orthogonal",
    "join",
    "mlp",
    "polyak_update",
    "redraw_noise",
    "rescale",
    "scale_gradient",
    "silence",
    "successor_critic",
    "target_copy",
    "top1_accuracy",
    "top1_hits",
    "trunk",
    "unit_vectors",
]
