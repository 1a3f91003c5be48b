"""No contrast: f is whatever encoder the learner's own loss has made (the paper's "APT w/o CL")."""

from __future__ import annotations

from voidrl.representations.base import Representation


class LearnerEncoder(Representation):
    """f is the learner's encoder, trained by the learner alone."""

    takes_learner_encoder = True
