"""No representation loss: f is the learner's encoder, trained by the RL loss (the paper's "APT w/o CL")."""

from __future__ import annotations

from voidrl.representations.base import Representation


class LearnerEncoder(Representation):
    """f is the learner's encoder."""

    uses_learner_encoder = True
