"""Everything that determines a run, as frozen dataclasses; to and from JSON.

The swappable pieces (method, representation, learner) define their config class in their own file; the fields
that they have in common are here. Nothing here imports torch.
"""

from voidrl.config.checks import Count as Count
from voidrl.config.checks import OptionalSize as OptionalSize
from voidrl.config.checks import Positive as Positive
from voidrl.config.checks import PositiveCount as PositiveCount
from voidrl.config.checks import Size as Size
from voidrl.config.checks import require as require
from voidrl.config.pieces import PIECES as PIECES
from voidrl.config.pieces import EncoderConfig as EncoderConfig
from voidrl.config.pieces import LearnerConfig as LearnerConfig
from voidrl.config.pieces import MethodConfig as MethodConfig
from voidrl.config.pieces import RepresentationConfig as RepresentationConfig
from voidrl.config.pieces import SkillConfig as SkillConfig
from voidrl.config.schema import AtariConfig as AtariConfig
from voidrl.config.schema import AugmentConfig as AugmentConfig
from voidrl.config.schema import Config as Config
from voidrl.config.schema import DMControlConfig as DMControlConfig
from voidrl.config.schema import EnvConfig as EnvConfig
from voidrl.config.schema import ReplayConfig as ReplayConfig
from voidrl.config.updating import LOCAL_FIELDS as LOCAL_FIELDS
from voidrl.config.updating import SET_BY_COMMAND as SET_BY_COMMAND
from voidrl.config.updating import bonus_method as bonus_method
from voidrl.config.updating import bonus_suffix as bonus_suffix
from voidrl.config.updating import default_piece as default_piece
from voidrl.config.updating import field_docs as field_docs
from voidrl.config.updating import field_types as field_types
from voidrl.config.updating import flat as flat
from voidrl.config.updating import merge as merge
from voidrl.config.updating import require_type as require_type
from voidrl.config.updating import similar_fields as similar_fields
from voidrl.config.updating import to_json as to_json
from voidrl.config.updating import update as update
from voidrl.config.updating import without_local_fields as without_local_fields
from voidrl.config.updating import without_user_fields as without_user_fields
