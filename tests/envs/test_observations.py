"""What each observation space becomes: frames computed by hand."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs, probe_env
from voidrl.envs.spaces import observed_frames, spec_of, to_frames
from voidrl.envs.spaces.frames import to_picture
from voidrl.errors import EnvironmentFailedError, SpaceError, UnknownNameError

TWO = spaces.Discrete(2)


def box(low, high, *shape, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


class World(gym.Env):
    """Returns the observations that it was given, in turn; episodes have three steps."""

    def __init__(self, space, observations, action_space=TWO, infos=None):
        self.observation_space, self.action_space = space, action_space
        self.observations, self.infos, self.taken = observations, infos, []

    def _see(self):
        at = self.steps % len(self.observations)
        return self.observations[at], {} if self.infos is None else self.infos[at]

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._see()

    def step(self, action):
        self.steps += 1
        self.taken.append(action)
        obs, info = self._see()
        return obs, 0.0, False, self.steps == 3, info


def frames_of(space, observations, backend="sync", **options):
    """The frames of the reset and of the steps of one environment."""
    envs = make_envs(EnvConfig("world", backend=backend, **options), lambda: World(space, observations))
    frames = [envs.reset(0)[0][0]]
    frames += [envs.step(np.zeros(1, np.int64)).frames[0] for _ in observations[1:]]
    envs.close()
    return np.stack(frames), envs


# Numbers


@pytest.mark.parametrize(
    ("space", "observation", "expected"),
    [
        (spaces.Discrete(4), 2, [0, 0, 1, 0]),
        (spaces.Discrete(3, start=-1), np.int64(-1), [1, 0, 0]),
        (spaces.MultiDiscrete([[2, 2], [2, 3]]), np.array([[0, 1], [1, 2]]), [1, 0, 0, 1, 0, 1, 0, 0, 1]),
        (spaces.MultiDiscrete([2, 2], start=[5, -5]), np.array([6, -5]), [0, 1, 1, 0]),
        (spaces.MultiBinary((2, 2)), np.array([[1, 0], [0, 1]]), [1, 0, 0, 1]),
        (box(-1, 1), np.float32(0.5), [0.5]),
        (box(-np.inf, np.inf, 2, 1, 2), np.array([[[5e9, 2]], [[3, 4]]]), [5e9, 2, 3, 4]),
        (box(-(2**63), 2**63 - 1, 2, dtype=np.int64), np.array([2**40, -3]), [2**40, -3]),
        (box(0, 1, 3, dtype=np.bool_), np.array([True, False, True]), [1, 0, 1]),
        (box(0, 9, 3, 3, dtype=np.uint8), np.arange(9, dtype=np.uint8).reshape(3, 3), range(9)),
        (spaces.Dict({"b": TWO, "a": box(0, 9, 2)}), {"a": np.array([3, 4]), "b": 0}, [3, 4, 1, 0]),
        (
            spaces.Dict({"x": spaces.Tuple((TWO, spaces.Dict({"y": box(0, 9, 2)}))), "z": box(0, 9)}),
            {"x": (1, {"y": np.array([7, 8])}), "z": 9.0},
            [0, 1, 7, 8, 9],
        ),
    ],
)
def test_numbers(space, observation, expected):
    (frame, _), envs = frames_of(space, [observation, observation])
    assert frame.dtype == np.float32
    assert frame.tolist() == pytest.approx([*expected])
    assert envs.spec.frame_shape == (len(expected),)
    assert not envs.spec.pixels
    assert envs.reading.notices == ()


# Images


def test_an_image_of_floats_is_scaled_by_its_bounds():
    space = box(-1, 1, 7, 8, 3)
    image = np.full((7, 8, 3), -1.0, np.float32)
    image[2, 5] = [1, 0, 0.5]
    (frame,), envs = frames_of(space, [image])
    assert frame.shape == (3, 7, 8)
    assert frame.dtype == np.uint8
    assert frame[:, 2, 5].tolist() == [255, 128, 191]  # (v + 1) / 2 · 255
    frame[:, 2, 5] = 0
    assert not frame.any()
    assert "image of float32 in [-1, 1]: stored with 8 bits" in envs.reading.notices[0]


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (box(0, 10, 8, 8, 3, dtype=np.int64), 7, 7),  # within 0 to 255, so as they are
        (box(0, 65535, 8, 8, 1, dtype=np.uint16), 32768, 128),
        (box(-100, 100, 1, 8, 8, dtype=np.int16), 0, 128),
        (box(0, 255, 3, 8, 8), 90.4, 90),
        (box(0, 1, 8, 8, dtype=np.bool_), True, 255),
    ],
)
def test_images_of_other_types(space, value, expected):
    (frame,), envs = frames_of(space, [np.full(space.shape, value, space.dtype)])
    assert envs.spec.pixels
    assert frame.dtype == np.uint8
    assert (frame == expected).all()


@pytest.mark.parametrize(
    ("space", "is_image"),
    [
        (box(0, 255, 7, 7, dtype=np.uint8), True),
        (box(0, 255, 6, 100, dtype=np.uint8), False),  # a side below 7
        (box(0, 1, 20, 20), False),  # a matrix
        (box(0, 1, 20, 20, 3), True),
        (box(0, 1, 20, 20, 10), True),  # half a side of channels
        (box(0, 1, 20, 20, 11), False),
        (box(0, 255, 20, 20, 11, dtype=np.uint8), True),
        (box(-np.inf, np.inf, 20, 20, 3), False),
        (box(-3e38, 3e38, 20, 20, 3), False),  # bounds in name only
        (box(0, 0, 20, 20, 3), False),
    ],
)
def test_what_is_an_image(space, is_image):
    assert spec_of(space, TWO, 1).pixels is is_image


def test_channels_are_the_shorter_of_first_and_last_axis():
    shapes = {(9, 8, 3): (3, 9, 8), (3, 9, 8): (3, 9, 8), (9, 8, 9): (9, 9, 8), (8, 9, 10): (8, 9, 10)}
    for shape, frame in shapes.items():
        assert spec_of(box(0, 255, *shape, dtype=np.uint8), TWO, 1).frame_shape == frame


def test_smaller_images_are_padded_at_the_bottom_and_the_right():
    space = spaces.Tuple((box(0, 255, 7, 12, dtype=np.uint8), box(0, 255, 9, 8, dtype=np.uint8)))
    (frame,), envs = frames_of(space, [(np.full((7, 12), 1, np.uint8), np.full((9, 8), 2, np.uint8))])
    assert frame.shape == (2, 9, 12)
    assert (frame[0, :7] == 1).all()
    assert not frame[0, 7:].any()
    assert (frame[1, :, :8] == 2).all()
    assert not frame[1, :, 8:].any()
    assert envs.render().shape == (7, 12, 3)


# Images with numbers


def test_numbers_are_packed_behind_the_image_bit_by_bit():
    space = spaces.Dict(
        {
            "at": box(-np.inf, np.inf, 12),
            "image": box(0, 255, 7, 7, 3, dtype=np.uint8),
            "open": TWO,
        }
    )
    at = np.array([1.5, -np.pi, 1e-30, 3e38, *range(8)], np.float32)
    image = np.random.default_rng(0).integers(0, 256, (7, 7, 3), np.uint8)
    (frame,), envs = frames_of(space, [{"at": at, "image": image, "open": 1}])
    spec = envs.spec
    assert (spec.frame_shape, spec.num_values, spec.pixels) == ((3, 7, 7), 14, True)
    assert spec.stored_shape == frame.shape == (5, 7, 7)  # 56 bytes take two planes of 49
    assert frame.dtype == np.uint8
    assert np.array_equal(frame[:3], image.transpose(2, 0, 1))
    packed = frame[3:].reshape(-1)
    assert packed[:56].tobytes() == np.array([*at, 0, 1], "<f4").tobytes()
    assert not packed[56:].any()
    assert spec.describe() == "pixels 3×7×7 and 14 numbers, 2 actions"
    assert np.array_equal(to_picture(frame, spec), image)


def test_a_batch_is_converted_as_its_rows_are():
    space = spaces.Dict(
        {
            "image": box(-1, 1, 8, 9, 3),
            "small": box(0, 255, 7, 7, dtype=np.uint8),
            "held": spaces.MultiDiscrete([3, 4]),
            "inner": spaces.Tuple((spaces.MultiBinary(2), box(-1, 1, 2, 2))),
        }
    )
    spec = spec_of(space, TWO, 1)
    batch = gym.vector.utils.batch_space(space, 5)
    batch.seed(0)
    observations = batch.sample()
    frames = to_frames(observations, spec)
    assert frames.shape == (5, *spec.stored_shape)
    for frame, each in zip(frames, gym.vector.utils.iterate(batch, observations), strict=True):
        assert np.array_equal(frame, observed_frames(each, spec)[0][0])
    assert np.array_equal(frames, observed_frames(observations, spec)[0])


# Keys


NESTED = spaces.Dict(
    {
        "agent": spaces.Dict({"at": box(0, 9, 2), "v": box(0, 9, 1)}),
        "goal": box(0, 9, 1),
        "word": spaces.Text(5),
    }
)
SEEN = {"agent": {"at": np.array([1, 2]), "v": np.array([3])}, "goal": np.array([4]), "word": "go"}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((), [1, 2, 3, 4]),
        (("goal", "agent"), [4, 1, 2, 3]),
        (("agent/v", "goal"), [3, 4]),
        (("agent/v", "agent"), [3, 1, 2]),
    ],
)
def test_keys_choose_and_order(keys, expected):
    (frame,), envs = frames_of(NESTED, [SEEN], keys=keys)
    assert frame.tolist() == expected
    assert len(envs.reading.notices) == (not keys), "what was not asked for is not missed"


def test_unknown_keys():
    with pytest.raises(
        UnknownNameError, match=r"key of observations \(env.keys\) 'gaol'; did you mean 'goal'"
    ):
        frames_of(NESTED, [SEEN], keys=("gaol",))
    with pytest.raises(UnknownNameError, match="did you mean 'agent/at'"):
        frames_of(NESTED, [SEEN], keys=("agent/a",))
    with pytest.raises(SpaceError, match=r"env.keys = \['a'\] cannot be used with observation space Box"):
        frames_of(box(0, 1, 2), [np.zeros(2)], keys=("a",))
    with pytest.raises(SpaceError, match=r"is not supported: .*FlattenObservation"):
        frames_of(NESTED, [SEEN], keys=("goal", "word"))


# What is wrong is named


IMAGE = box(0, 255, 8, 8, 3, dtype=np.uint8)
MIXED = spaces.Dict({"image": IMAGE, "agent": spaces.Dict({"at": box(-1, 1, 2)}), "held": spaces.Discrete(3)})


def mixed(**changes):
    fine = {"image": np.zeros((8, 8, 3), np.uint8), "agent": {"at": np.zeros(2)}, "held": 0}
    return fine | changes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"image": np.zeros((8, 9, 3), np.uint8)}, r"observation\['image'\] of shape \(8, 9, 3\) at"),
        ({"image": np.zeros((8, 8, 3))}, r"observation\['image'\] of type float64 at .* expected uint8"),
        ({"agent": {}}, r".* at its own step 1: expected observation\['agent'\]\['at'\], as in its obs"),
        ({"agent": {"at": [1, [2]]}}, r"observation\['agent'\]\['at'\] that is no array"),
        ({"agent": {"at": np.array([0, np.nan])}}, r"observation\['agent'\]\['at'\]\[1\] = nan at .*finite"),
        ({"agent": {"at": np.array([0, 2])}}, r"observation\['agent'\]\['at'\]\[1\] = 2 at .*in \[-1, 1\]"),
        ({"held": 3}, r"observation\['held'\] = 3 at its own step 1: expected a value in \[0, 2\]"),
        ({"held": 1.5}, r"observation\['held'\] of type float64"),
    ],
)
def test_a_wrong_entry_is_named(changes, sentence):
    with pytest.raises(EnvironmentFailedError, match=rf"environment 0 \('world'\) returned {sentence}"):
        frames_of(MIXED, [mixed(), mixed(**changes)])


def test_without_bounds_only_choices_are_checked():
    (_, frame), _ = frames_of(MIXED, [mixed(), mixed(agent={"at": np.array([5, 6])})], check_bounds=False)
    assert frame[3].reshape(-1)[:8].view("<f4").tolist() == [5, 6]
    with pytest.raises(EnvironmentFailedError, match=r"\['held'\] = 7 at its own step 1"):
        frames_of(MIXED, [mixed(), mixed(held=7)], check_bounds=False)
    with pytest.raises(EnvironmentFailedError, match=r"\['at'\]\[0\] = nan"):
        frames_of(MIXED, [mixed(), mixed(agent={"at": np.array([np.nan, 0])})], check_bounds=False)


# Native vector environments


class MixedVector(gym.vector.VectorEnv):
    """A native vector environment with Dict observations and masks."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space = MIXED
    single_action_space = spaces.MultiDiscrete([2, 3])

    def __init__(self, num_envs=3, odd=None):
        self.num_envs, self.odd = num_envs, odd or {}

    def _see(self):
        n = self.num_envs
        image = np.zeros((n, 8, 8, 3), np.uint8)
        image[:, 0, 0, 0] = np.arange(n)
        return {"image": image, "agent": {"at": np.full((n, 2), 0.5)}, "held": np.arange(n)}

    def reset(self, *, seed=None, options=None):
        return self._see(), {"action_mask": np.ones((self.num_envs, 5), np.int8)}

    def step(self, actions):
        self.actions = actions
        no = np.zeros(self.num_envs, bool)
        ended = np.arange(self.num_envs) == self.num_envs - 1
        masks = np.tile(np.array([1, 0, 0, 1, 1]), (self.num_envs, 1))
        masks[-1] = 0  # nothing is allowed where the episode has ended
        return self._see() | self.odd, np.zeros(self.num_envs), no, ended, {"action_mask": masks}


@pytest.fixture
def mixed_vector():
    gym.register("MixedVector-v0", vector_entry_point=MixedVector)
    yield "MixedVector-v0"
    del gym.registry["MixedVector-v0"]


def test_native_vector_environments_are_converted_as_a_batch(mixed_vector):
    spec, config = probe_env(EnvConfig(mixed_vector, num_envs=3, keys=("held", "image")))
    assert config.action_masks == "info"
    assert spec.describe() == "pixels 3×8×8 and 3 numbers, 6 masked actions"
    envs = make_envs(config)
    frames, _ = envs.reset(0)
    numbers = frames[:, 3].reshape(3, -1)[:, :36].copy().view("<f4")
    assert np.array_equal(numbers, np.concatenate([np.eye(3), np.ones((3, 6))], 1))
    assert frames[:, 0, 0, 0].tolist() == [0, 1, 2]
    frames = envs.step(np.array([0, 4, 5])).frames
    assert envs.vector.actions.tolist() == [[0, 0], [1, 1], [1, 2]]
    masks = frames[:, 3].reshape(3, -1)[:, :36].copy().view("<f4")[:, 3:]
    # Of the first component 0 is allowed, of the second 1 and 2.
    assert masks.tolist() == [[0, 1, 1, 0, 0, 0], [0, 1, 1, 0, 0, 0], [1] * 6]


@pytest.mark.parametrize(
    ("odd", "sentence"),
    [
        ({"held": np.array([0, 1, 9])}, r"environment 2 .* returned observation\['held'\] = 9 at its own"),
        ({"held": np.zeros(2, int)}, r"vector environment .* returned observation\['held'\] of shape"),
        ({"agent": 3}, r"vector environment '.*' returned .*: expected observation\['agent'\]\['at'\]"),
    ],
)
def test_native_vector_environments_are_checked(mixed_vector, odd, sentence):
    envs = make_envs(EnvConfig(mixed_vector, num_envs=3))
    envs.reset(0)
    envs.vector.odd = odd
    with pytest.raises(EnvironmentFailedError, match=sentence):
        envs.step(np.zeros(3, np.int64))


# What users pass to `Agent.act`


def test_observations_of_users():
    spec = spec_of(MIXED, TWO, 2)
    stacked = {"image": np.zeros((2, 8, 8, 3), np.uint8), "agent": {"at": np.ones((2, 2))}, "held": [0, 2]}
    frames, single = observed_frames(stacked, spec)
    assert single
    assert frames.shape == (1, 2 * spec.stored_shape[0], 8, 8)
    assert frames[0, -1].reshape(-1)[:20].view("<f4").tolist() == [1, 1, 0, 0, 1]
    batch = {"image": np.zeros((3, 2, 8, 8, 3), np.uint8), "agent": {"at": np.ones((3, 2, 2))}}
    frames, single = observed_frames(batch | {"held": np.zeros((3, 2), int)}, spec)
    assert not single
    assert len(frames) == 3
    with pytest.raises(SpaceError, match=r"observation\['held'\] of shape \(2,\) .* the same batch"):
        observed_frames(batch | {"held": np.zeros(2, int)}, spec)
    with pytest.raises(SpaceError, match=r"cannot be acted on: expected observation\['held'\]"):
        observed_frames(batch, spec)
    with pytest.raises(SpaceError, match=r"observation\['held'\] = .*3.* cannot be seen: expected"):
        observed_frames(stacked | {"held": [0, 3]}, spec)
    with pytest.raises(SpaceError, match=r"observation\['image'\] of float64 .* expected an image of uint8"):
        observed_frames(stacked | {"image": np.zeros((2, 8, 8, 3))}, spec)


def test_a_scalar_and_a_float_image_of_users():
    assert observed_frames(0.5, spec_of(box(-1, 1), TWO, 1)) == (np.array([[0.5]], np.float32), True)
    frames, single = observed_frames(np.zeros(3), spec_of(box(-1, 1), TWO, 1))
    assert (frames.shape, single) == ((3, 1), False)
    spec = spec_of(box(0, 1, 7, 7, 3), TWO, 1)
    assert (observed_frames(np.ones((7, 7, 3)), spec)[0] == 255).all()


# What is refused, and what helps


FLATTEN = "gymnasium.wrappers:FlattenObservation"


@pytest.mark.parametrize(
    ("space", "advice"),
    [
        (spaces.Text(3, charset="ab"), FLATTEN),
        (spaces.Dict({"a": spaces.Text(3, charset="ab")}), FLATTEN),
        (spaces.Sequence(spaces.Discrete(9)), "TransformObservation"),
        (spaces.Discrete(10_001), "TransformObservation"),
    ],
)
def test_what_cannot_be_seen_names_the_wrapper_that_helps(space, advice):
    with pytest.raises(SpaceError, match=rf"^environment 'world': .* is not supported.*{advice}"):
        frames_of(space, [None])
