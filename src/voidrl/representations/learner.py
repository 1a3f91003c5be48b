"""Nothing besides the learner: f is the encoder that its loss trains (the paper's "APT w/o CL")."""

from __future__ import annotations

from voidrl.representations.base import Representation


class LearnerEncoder(Representation):
    """f is the learner's encoder."""

    uses_learner_encoder = True
