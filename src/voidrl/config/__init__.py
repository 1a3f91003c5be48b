"""Everything that determines a run, as frozen dataclasses; to and from JSON.

The swappable pieces (method, representation, learner) define their config class in their own file; the fields
that they have in common are here. Nothing here imports torch.
"""

from voidrl.config.checks import (
    LEAST_PROBE_STEPS,
    MAX_SKILLS,
    Count,
    require,
    require_positive,
    require_skills,
)
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
    LearnerConfig,
    MethodConfig,
    PieceConfig,
    RepresentationConfig,
    SkillConfig,
    Trainer,
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
    update,
    without_local_fields,
    without_user_fields,
)

__all__ = [
    "AUTOMATIC",
    "LEAST_PROBE_STEPS",
    "LOCAL_FIELDS",
    "MAX_SKILLS",
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
    "EnvConfig",
    "FinetuneConfig",
    "LearnerConfig",
    "LogConfig",
    "MethodConfig",
    "PieceConfig",
    "ReplayConfig",
    "RepresentationConfig",
    "ResetConfig",
    "SkillConfig",
    "Trainer",
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
    "require_positive",
    "require_skills",
    "similar_fields",
    "to_json",
    "update",
    "without_local_fields",
    "without_user_fields",
]
