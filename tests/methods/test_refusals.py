"""What a method cannot work with is refused in one sentence that names the value, the reason and a remedy."""

import pytest
from helpers import DISCRETE, PIXELS, make_agent

from voidrl.errors import ConfigError

FEW_SKILLS = "expected 2 to 65536.*apt and rnd do without"
CASES = [  # each on a minibatch of 16
    # More neighbors than there are
    ("apt", {"k": 16}, r"k = 16 .* learner\.batch_size = 16: .* method\.k = 15 or less, or .* such as rnd"),
    ("apt", {"k": 17, "include_self": True}, r"k = 17 .* method\.k = 16 or less"),
    ("apt", {"k": 9, "pool": 8}, r"k = 9 .* method\.pool = 8: .* method\.k = 8 or less, or .* such as rnd"),
    ("apt", {"learner__batch_size": 1}, "a state has 0 others .* use a larger learner.batch_size, or"),
    ("cic", {"k": 18}, r"method\.k = 18 cannot be used with learner\.batch_size = 16.*rnd"),
    ("mepol", {"k": 10, "learner__rollout_steps": 10}, "k = 10 cannot be .* learner.rollout_steps = 10"),
    ("re3", {"k": 16, "pool": 0}, r"method\.k = 16 cannot be used with learner\.batch_size = 16"),
    # Fewer than it needs
    ("apt", {"k": 1, "include_self": True}, "k = 1 cannot be used: expected 2 or more with include_self"),
    ("apt", {"pool": -1}, "pool = -1 cannot be used: expected 0 to 65536"),
    ("apt", {"normalize": "distance_variance", "mean_momentum": 0.9}, "= 0.9 .*: expected None with"),
    ("aps", {"mean_momentum": 1.5}, "mean_momentum = 1.5 cannot be used"),
    ("cic", {"k": 1}, r"k = 1\b.*expected 2 or more"),
    # Skills
    ("aps", {"skill_dim": 1}, "skill_dim = 1 cannot be used: expected 2 to 65536"),
    ("becl", {"num_skills": 1}, f"num_skills = 1 .*{FEW_SKILLS}"),
    ("becl", {"num_skills": 17}, "num_skills = 17 .*batch_size = 16: .*; use 16 skills or fewer.*diayn"),
    ("dads", {"skill_dim": 0}, "skill_dim = 0 cannot be used: expected 1 .*apt and rnd"),
    ("metra", {"skill_dim": 0}, "skill_dim = 0 .*expected 1 .*apt and rnd"),
    ("metra", {"skill_dim": 1, "discrete_skills": True}, f"skill_dim = 1 .*{FEW_SKILLS}"),
    ("smm", {"num_skills": 0}, "num_skills = 0 cannot be used"),
    # Periods and steps
    ("aps", {"skill_every_steps": 2, "learner__n_step": 3}, "skill_every_steps = 2 cannot be used"),
    ("edl", {"replay__capacity_steps": 40_000, "steps": 100_000}, "50000 states .*_explore_steps = 40000"),
    ("edl", {"steps": 1500}, "the 750 steps of exploration would end before the first update"),
    ("metra", {"learner__n_step": 3, "learner__intrinsic_n_step": "single"}, "steps; use 'summed'"),
    ("moss", {"explore_steps": 20, "skill_every_steps": 0}, r"= 20\b.*no skill would be in control mode"),
    ("vic", {"skill_every_steps": 0}, "skill_every_steps = 0 cannot be used: expected 1 or more"),
    # Values
    ("cbb", {"pool": 64, "recounted": 8}, "recounted = 8 cannot be used: expected at least pool = 64"),
    ("cbb", {"source": "images"}, "source"),
    ("maxent", {"epsilon": 2.0}, r"epsilon = 2.* cannot be used: expected a number in \(0, 1\), or 0"),
    ("proto", {"num_prototypes": 2049}, "num_prototypes = 2049 cannot be used: expected 1 to 2048"),
    # Other pieces
    ("icm", {"representation": "simclr"}, "'simclr', which has no prediction_error: use representation icm"),
    ("icm", {"representation": {"name": "icm", "forward_weight": 0}}, r"representation\.forward_weight = 0"),
    ("visr", {"learner": "rainbow"}, "learner 'rainbow' cannot be used with method 'visr'"),
    ("mepol", {"learner": "dqn"}, "cannot be used with learner 'dqn'.*leave the learner out"),
    ("apt", {"learner": "mepol"}, "learner 'mepol' cannot be used with method 'apt'"),
    ("diayn", {"learner": "mepol", "phase": "train"}, "it follows no skills"),
    ("mepol", {"replay__capacity_steps": 100}, "capacity_steps = 100 cannot be used .* use 800 or more"),
    ("mepol", {"replay__priority_exponent": 0.5}, "priority_exponent = 0.5 cannot be used .* use 0"),
    ("mepol", {"replay__data": "x-v0"}, "replay.data = 'x-v0' cannot be used .* leave it out"),
]
NOT_OF_METHODS = ("steps", "learner", "representation", "phase")


def refusal(spec, name, changes):
    named = {
        key if "__" in key or key in NOT_OF_METHODS else f"method__{key}": value
        for key, value in changes.items()
    }
    with pytest.raises(ConfigError) as error:
        make_agent(spec, method=name, **named)
    return error


@pytest.mark.parametrize(("name", "changes", "sentence"), CASES)
def test_what_cannot_work_is_refused(name, changes, sentence):
    assert refusal(DISCRETE, name, changes).match(sentence)


def test_metra_models_no_images():
    sentence = "'controllability' .* on pixels .*Gaussian.*use 'temporal'"
    assert refusal(PIXELS, "metra", {"distance": "controllability"}).match(sentence)
