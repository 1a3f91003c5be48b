"""Everything that determines a run, as frozen dataclasses; to and from JSON.

The swappable pieces (method, representation, learner) define their config class in their own file; the fields
that they have in common are here. Nothing here imports torch.
"""

from voidrl.config.checks import Count, OptionalSize, Positive, PositiveCount, Size, require
from voidrl.config.environment import AtariConfig, DMControlConfig, EnvConfig
from voidrl.config.fields import (
    LOCAL_FIELDS,
    SET_BY_COMMAND,
    bonus_method,
    bonus_suffix,
    field_docs,
    field_types,
    flat,
    similar_fields,
    to_json,
)
from voidrl.config.pieces import (
    PIECES,
    EncoderConfig,
    LearnerConfig,
    MethodConfig,
    RepresentationConfig,
    SkillConfig,
)
from voidrl.config.schema import (
    AugmentConfig,
    Config,
    ReplayConfig,
)
from voidrl.config.updating import (
    default_piece,
    merge,
    require_type,
    update,
    without_local_fields,
    without_user_fields,
)

__all__ = [
    "LOCAL_FIELDS",
    "PIECES",
    "SET_BY_COMMAND",
    "AtariConfig",
    "AugmentConfig",
    "Config",
    "Count",
    "DMControlConfig",
    "EncoderConfig",
    "EnvConfig",
    "LearnerConfig",
    "MethodConfig",
    "OptionalSize",
    "Positive",
    "PositiveCount",
    "ReplayConfig",
    "RepresentationConfig",
    "Size",
    "SkillConfig",
    "bonus_method",
    "bonus_suffix",
    "default_piece",
    "field_docs",
    "field_types",
    "flat",
    "merge",
    "require",
    "require_type",
    "similar_fields",
    "to_json",
    "update",
    "without_local_fields",
    "without_user_fields",
]
