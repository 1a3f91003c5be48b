"""What an environment returns is checked: types in each one, values in all of them at once."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs
from voidrl.envs.vector import Envs
from voidrl.errors import EnvironmentFailedError


class Odd(gym.Env):
    """Returns `odd` in place of a part of its second step, if it has the given seed."""

    def __init__(self, space=None, seed=1, **odd):
        self.observation_space = space or spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.odd_seed, self.odd, self.steps = seed, odd, 0

    def fine(self):
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        self.is_odd = seed == self.odd_seed
        if self.is_odd and "reset" in self.odd:
            return self.odd["reset"]
        return self.fine(), {}

    def step(self, action):
        self.steps += 1
        parts = {"obs": self.fine(), "reward": 0.5, "terminated": False, "truncated": False, "info": {}}
        if self.is_odd and self.steps == 2:
            if "all" in self.odd:
                return self.odd["all"]
            parts |= self.odd
        return tuple(parts.values())


def failure(backend="sync", check_bounds=True, **odd):
    """The sentence about environment 1 of 2."""
    config = EnvConfig("mine", num_envs=2, backend=backend, check_bounds=check_bounds)
    envs = make_envs(config, lambda: Odd(**odd))
    try:
        envs.reset(0)
        for _ in range(3):
            envs.step(np.zeros(2, np.int64))
    except EnvironmentFailedError as error:
        return str(error)
    finally:
        envs.close()
    return "none"


STEP = "at its own step 2: expected"
IN_BOX = f"{STEP} a value in [-1, 1], as in its observation_space"
REFUSED = {
    "shape": ({"obs": np.zeros(3)}, f"an observation of shape (3,) {STEP} (2,), as in its observation_space"),
    "ragged": ({"obs": [[1, 2], [3]]}, "an observation that is no array (ValueError("),
    "text": ({"obs": np.array(["a", "b"])}, f"an observation of type <U1 {STEP} float32"),
    "objects": ({"obs": np.array([None, 1])}, f"an observation of type object {STEP} float32"),
    "nan": ({"obs": np.array([0, np.nan])}, f"observation[1] = nan {STEP} finite numbers"),
    "outside": ({"obs": np.array([0, 1.5])}, f"observation[1] = 1.5 {IN_BOX}"),
    "no reward": ({"reward": None}, f"None {STEP} a number as reward"),
    "two rewards": ({"reward": np.ones(2)}, f"array([1., 1.]) {STEP} a number as reward"),
    "reward nan": ({"reward": np.nan}, f"reward nan {STEP} a finite number"),
    "terminated in words": ({"terminated": "False"}, f"'False' {STEP} True or False as terminated"),
    "terminated by half": ({"terminated": 0.5}, f"0.5 {STEP} True or False as terminated"),
    "two flags": (
        {"truncated": np.zeros(2, bool)},
        f"array([False, False]) {STEP} True or False as truncated",
    ),
    "no info": ({"info": None}, f"None {STEP} a dictionary as info"),
    "four values": ({"all": (0, 0.0, False, {})}, f"(0, 0.0, False, {{}}) {STEP} 5 values"),
    "an old reset": ({"reset": np.zeros(2)}, "array([0., 0.]) in reset after 0 steps: expected 2 values"),
    "nan in reset": (
        {"reset": (np.full(2, np.nan), {})},
        "observation[0] = nan in reset after 0 steps: expected finite",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_with_the_number_the_value_and_the_step(case):
    odd, sentence = REFUSED[case]
    assert failure(**odd).startswith(f"environment 1 ('mine') returned {sentence}")


def test_worker_processes_refuse_the_same():
    for case in ("shape", "no reward", "outside"):
        odd, sentence = REFUSED[case]
        assert failure("async", **odd).startswith(f"environment 1 ('mine') returned {sentence}")


def test_an_info_that_cannot_be_sent_to_the_run():
    assert "environment 1 ('mine') has spaces or an info that cannot be sent between processes" in failure(
        "async", info={"f": lambda: 0}
    )


@pytest.mark.parametrize(
    "odd",
    [
        {"obs": np.array([1.000001, -1.000001])},  # float64, and rounded
        {"obs": [0, 1]},
        {"reward": 3},
        {"reward": np.full((1, 1), 0.25)},
        {"terminated": 0, "truncated": 1},
        {"terminated": 1.0, "truncated": 0.0},
        {"terminated": np.array([False]), "truncated": np.array([1])},
    ],
)
def test_what_means_the_same_is_taken(odd):
    envs = make_envs(EnvConfig("mine"), lambda: Odd(seed=0, **odd))
    envs.reset(0)
    envs.step(np.zeros(1, np.int64))
    result = envs.step(np.zeros(1, np.int64))
    envs.close()
    assert result.frames[0].tolist() == pytest.approx(np.float32(odd.get("obs", [0, 0])).tolist())
    assert result.reward.tolist() == [np.asarray(odd.get("reward", 0.5)).item()]
    assert result.terminated.tolist() == [bool(odd.get("terminated", False))]
    assert result.truncated.tolist() == [bool(odd.get("truncated", False))]


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_bounds_are_not_checked_if_the_user_says_so(backend):
    outside = {"obs": np.array([0, 1.5])}
    remedy = "(fix the value, widen the space, or set env.check_bounds = False)"
    assert failure(backend, **outside).endswith(remedy)
    assert failure(backend, check_bounds=False, **outside) == "none"


@pytest.mark.parametrize("case", ["nan", "nan in reset", "shape", "text", "reward nan"])
def test_without_bounds_everything_else_is_refused(case):
    odd, sentence = REFUSED[case]
    assert sentence in failure(check_bounds=False, **odd)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), np.zeros((8, 8, 3)), "of type float64"),
        (spaces.Box(0, 7, (8, 8), np.uint8), np.full((8, 8), 9, np.uint8), "observation[0, 0] = 9"),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), np.array([0, np.inf]), "observation[1] = inf"),
        (
            spaces.Box(-np.inf, np.inf, (2,), np.float64),
            np.array([0, 1e300]),
            "within the range of float32",
        ),
        (spaces.Box(np.array([-1, -np.inf]), np.inf, (2,)), np.array([-2.0, 0]), "observation[0] = -2.0"),
        (spaces.Box(np.array([-1, -np.inf]), np.inf, (2,)), np.array([0, -np.inf]), "observation[1] = -inf"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_observations_of_other_spaces(space, value, expected):
    sentence = failure(space=space, obs=value)
    assert sentence.startswith("environment 1 ('mine') returned ")
    assert expected in sentence


class OddVector(gym.vector.VectorEnv):
    """A native vector environment that returns one odd part."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 3
    single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, **odd):
        self.odd = odd

    def reset(self, *, seed=None, options=None):
        return np.zeros((3, 2), np.float32), {}

    def step(self, actions):
        no = np.zeros(3, bool)
        parts = {"obs": np.zeros((3, 2)), "reward": np.zeros(3), "terminated": no, "truncated": no}
        return (*(parts | self.odd).values(), {})


@pytest.mark.parametrize(
    ("odd", "sentence"),
    [
        ({"obs": np.zeros((2, 2))}, r"vector environment 'v' returned observations of shape \(2, 2\)"),
        ({"obs": np.full((3, 2), "a")}, r"vector environment 'v' returned observations of type <U1"),
        (
            {"obs": np.eye(3, 2) * 4},
            r"environment 0 \('v'\) returned observation\[0\] = 4.0 at its own step 1",
        ),
        ({"reward": np.zeros((3, 1))}, r"rewards of type float64 and shape \(3, 1\): expected 3 numbers"),
        ({"reward": [0, None, 0]}, "rewards of type object"),
        ({"reward": [0, 0, np.nan]}, r"environment 2 \('v'\) returned reward nan at its own step 1"),
        ({"terminated": [None] * 3}, "terminated of type object .* expected 3 values True or False"),
        ({"truncated": np.zeros((3, 1))}, r"truncated of type float64 and shape \(3, 1\)"),
        (
            {"truncated": np.array([0, 1, 0.5])},
            r"environment 2 \('v'\) returned truncated = 0.5 at its own step 1: expected True or False",
        ),
    ],
)
def test_a_native_vector_environment_is_checked_as_a_batch(odd, sentence):
    envs = Envs(OddVector(**odd), EnvConfig("v"))
    envs.reset(0)
    with pytest.raises(EnvironmentFailedError, match=sentence):
        envs.step(np.zeros(3, np.int64))


def test_a_native_vector_environment_may_have_flags_that_are_numbers():
    envs = Envs(OddVector(terminated=np.array([0.0, 1.0, 0.0]), truncated=[0, 0, 1]), EnvConfig("v"))
    envs.reset(0)
    assert envs.step(np.zeros(3, np.int64)).ended.tolist() == [False, True, True]
