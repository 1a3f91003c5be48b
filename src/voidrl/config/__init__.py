"""Everything that determines a run, as frozen dataclasses; to and from JSON.

The swappable pieces (method, representation, learner) define their config class in their own file; the fields
that they have in common are here. Nothing here imports torch.
"""

from voidrl.config.checks import Count, OptionalSize, Positive, PositiveCount, Size, require
from voidrl.config.environment import AtariConfig, DMControlConfig, EnvConfig
from voidrl.config.fields import (
    LOCAL_FIELDS,
    RESUMABLE_FIELDS,
    SET_BY_COMMAND,
    USER_FIELDS,
    bonus_method,
    bonus_suffix,
    field_docs,
    field_types,
    flat,
    may_change,
    similar_fields,
    to_json,
)
from voidrl.config.pieces import (
    AUTOMATIC,
    PIECES,
    EncoderConfig,
    EncoderTrainer,
    LearnerConfig,
    MethodConfig,
    PieceConfig,
    RepresentationConfig,
    SkillConfig,
)
from voidrl.config.schema import (
    AugmentConfig,
    BonusConfig,
    Config,
    FinetuneConfig,
    LogConfig,
    ReplayConfig,
    ResetConfig,
)
from voidrl.config.updating import (
    default_piece,
    differences,
    merge,
    require_type,
    update,
    without_local_fields,
    without_user_fields,
)

__all__ = [
    "AUTOMATIC",
    "LOCAL_FIELDS",
    "PIECES",
    "RESUMABLE_FIELDS",
    "SET_BY_COMMAND",
    "USER_FIELDS",
    "AtariConfig",
    "AugmentConfig",
    "BonusConfig",
    "Config",
    "Count",
    "DMControlConfig",
    "EncoderConfig",
    "EncoderTrainer",
    "EnvConfig",
    "FinetuneConfig",
    "LearnerConfig",
    "LogConfig",
    "MethodConfig",
    "OptionalSize",
    "PieceConfig",
    "Positive",
    "PositiveCount",
    "ReplayConfig",
    "RepresentationConfig",
    "ResetConfig",
    "Size",
    "SkillConfig",
    "bonus_method",
    "bonus_suffix",
    "default_piece",
    "differences",
    "field_docs",
    "field_types",
    "flat",
    "may_change",
    "merge",
    "require",
    "require_type",
    "similar_fields",
    "to_json",
    "update",
    "without_local_fields",
    "without_user_fields",
]
