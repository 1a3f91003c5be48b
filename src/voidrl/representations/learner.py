"""No representation loss: the encoder is the learner's, trained by the RL loss (the paper's "APT w/o CL")."""

from __future__ import annotations

from voidrl.representations.base import Representation


class LearnerEncoder(Representation):
    """The learner's encoder."""

    uses_learner_encoder = True
