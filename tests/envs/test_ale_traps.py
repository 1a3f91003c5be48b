"""What voidrl relies on, or avoids, in ALE's vector environment: a new ALE that changes it is noticed.

Nothing of voidrl runs here. That its own environments come out right is tested in `test_atari_golden.py`.
"""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

ale_py = pytest.importorskip("ale_py")
AtariVectorEnv = pytest.importorskip("ale_py.vector_env").AtariVectorEnv
roms = pytest.importorskip("ale_py.roms")

pytestmark = pytest.mark.slow  # only a new version of ALE can change what is tested here

SETTINGS = {"stack_num": 1, "use_fire_reset": False, "reward_clipping": False, "num_threads": 1}
FIRE = 1


@pytest.fixture(autouse=True)
def _quiet():
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def make(game="breakout", num_envs=1, **settings):
    return AtariVectorEnv(game, num_envs, **{**SETTINGS, **settings})


def fires(env, steps, seed=0):
    """What `steps` shots gave: in breakout the ball is served and, as nobody plays, soon lost."""
    env.reset(seed=seed)
    return [env.step(np.full(env.num_envs, FIRE)) for _ in range(steps)]


def until(env, reached, action=FIRE, seed=0):
    """The first step of which `reached(terminated, lives)` holds."""
    env.reset(seed=seed)
    for _ in range(2000):
        step = env.step(np.full(env.num_envs, action))
        if reached(step[2][0], step[4]["lives"][0]):
            return step
    raise AssertionError("never reached")


def number(step):
    return step[-1]["episode_frame_number"][0]


def test_defaults_that_voidrl_does_not_set():
    defaults = {name: p.default for name, p in inspect.signature(AtariVectorEnv).parameters.items()}
    wanted = {
        "img_height": 84,
        "img_width": 84,
        "grayscale": True,
        "frameskip": 4,
        "maxpool": True,
        "noop_max": 30,
        "max_num_frames_per_episode": 108_000,
        "repeat_action_probability": 0.0,
        "full_action_space": False,
        "episodic_life": False,
        "life_loss_info": False,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    assert {name: defaults[name] for name in wanted} == wanted
    # Those that voidrl must set, as they are not what it wants:
    assert defaults["reward_clipping"] is True
    assert defaults["use_fire_reset"] is True
    assert defaults["stack_num"] == 4


def test_what_a_step_gives():
    env = make(num_envs=2)
    obs, info = env.reset(seed=0)
    step = env.step(np.array([0, 1]))
    for frames in (obs, step[0]):
        assert frames.shape == (2, 1, 84, 84)
        assert frames.dtype == np.uint8
    assert [part.dtype for part in step[1:4]] == [np.int32, np.bool_, np.bool_]
    assert set(step[4]) == set(info) == {"env_id", "lives", "frame_number", "episode_frame_number"}
    assert step[4]["env_id"].tolist() == [0, 1]
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


# --- frames -----------------------------------------------------------------------------------------------


def test_the_newest_frame_is_last_and_the_only_one_of_a_stack_of_one():
    four, one = make(stack_num=4), make()
    stack, first = four.reset(seed=0)[0][0], one.reset(seed=0)[0][0, 0]
    assert np.array_equal(stack[3], first)
    assert not stack[:3].any()  # ALE begins with black frames; voidrl's replay with copies of the first
    for _ in range(20):
        before, stack = stack, four.step(np.array([FIRE]))[0][0]
        assert np.array_equal(stack[:3], before[1:])
        assert np.array_equal(stack[3], one.step(np.array([FIRE]))[0][0, 0])


def test_what_was_given_is_never_written_to_again():
    """voidrl keeps lives and frames of the step before without copying them."""
    env = make("pong", 2)
    obs, info = env.reset(seed=0)
    kept = [obs, *info.values()]
    for _ in range(10):
        *arrays, info = env.step(np.array([2, 3]))
        kept += [*arrays, *info.values()]
    copies = [array.copy() for array in kept]
    for _ in range(10):
        env.step(np.array([3, 2]))
    assert all(np.array_equal(array, copy) for array, copy in zip(kept, copies, strict=True))
    assert not any(np.shares_memory(a, b) for i, a in enumerate(kept) for b in kept[:i])


def test_actions_may_change_once_they_are_sent():
    env = make("pong")

    def played(then):
        env.reset(seed=0)
        for _ in range(20):
            action = np.array([2])
            env.send(action)
            action[:] = then
            frames = env.recv()[0]
        return frames

    assert np.array_equal(played(then=3), played(then=2))


# --- lives and ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [False, True])
def test_a_lost_life_does_not_reset_the_game(told):
    """With `life_loss_info` it is told as terminated; without it, as voidrl has it, by `lives` alone."""
    env = make(life_loss_info=told)
    lost = until(env, lambda terminated, lives: lives < 5)
    assert lost[2][0] == told
    assert not lost[3][0]
    assert lost[4]["lives"][0] == 4
    after = env.step(np.array([FIRE]))
    assert number(after) == number(lost) + 4
    assert after[4]["lives"][0] == 4


def test_episodic_life_resets_the_whole_game():
    """So voidrl cannot use it."""
    env = make(episodic_life=True)
    lost = until(env, lambda terminated, lives: lives < 5)
    assert lost[2][0]
    after = env.step(np.array([FIRE]))
    assert number(after) < 30
    assert after[4]["lives"][0] == 5


def test_life_loss_info_is_silent_about_the_last_life_where_the_game_goes_on():
    """In atlantis the last life is number 0. It is lost when the game is over."""
    env = make("atlantis", life_loss_info=True, noop_max=0)
    lost = until(env, lambda terminated, lives: lives == 0, action=0)
    assert not lost[2][0]
    assert number(env.step(np.array([0]))) == number(lost) + 4


def test_the_step_after_game_over_only_resets():
    env = make(num_envs=2)
    end = until(env, lambda terminated, lives: terminated, seed=np.array([0, 0]))
    assert end[4]["lives"][0] == 0
    assert not end[3][0]
    assert "final_obs" not in end[4]  # what the step gave is the last there is of this game
    after = env.step(np.array([FIRE, 3]))
    assert np.array_equal(after[0][0], after[0][1])  # the action is ignored
    assert after[1][0] == 0
    assert not after[2][0]
    assert not after[3][0]
    assert 0 <= number(after) < 30  # no-ops
    assert after[4]["lives"][0] == 5
    assert after[4]["frame_number"][0] == number(end) + number(after)
    assert number(env.step(np.array([FIRE, 3]))) == number(after) + 4


def test_a_reset_takes_the_place_of_the_one_that_was_due():
    env, fresh = make(max_num_frames_per_episode=8), make(max_num_frames_per_episode=8)
    assert fires(env, 2)[-1][3][0]
    begun, _ = env.reset(seed=5)
    assert np.array_equal(begun, fresh.reset(seed=5)[0])
    for _ in range(2):
        assert np.array_equal(env.step(np.array([FIRE]))[0], fresh.step(np.array([FIRE]))[0])


@pytest.mark.parametrize("cap", [8, 11])
def test_the_cap_counts_frames_after_the_noops_and_stops_within_a_step(cap):
    env = make(max_num_frames_per_episode=cap)
    noops = env.reset(seed=0)[1]["episode_frame_number"][0]
    assert noops == 16
    steps = [env.step(np.array([FIRE])) for _ in range(-(-cap // 4) + 1)]
    assert [step[3][0] for step in steps] == [*[False] * (len(steps) - 2), True, False]
    assert not any(step[2][0] for step in steps)
    assert number(steps[-2]) == noops + cap
    assert number(steps[-1]) < 30
    if cap % 4:  # cut short, it shows the frame of the step before again
        assert np.array_equal(steps[-2][0], steps[-3][0])


def test_life_loss_info_hides_a_cap_in_the_same_step():
    """The game is reset although it was told as a lost life: another reason to read `lives` instead."""
    frames = number(until(make(noop_max=0), lambda terminated, lives: lives < 5))
    for told in (False, True):
        env = make(noop_max=0, life_loss_info=told, max_num_frames_per_episode=int(frames))
        lost = until(env, lambda terminated, lives: lives < 5)
        assert (lost[2][0], lost[3][0]) == (told, not told)
        assert number(env.step(np.array([FIRE]))) == 0


# --- seeds ------------------------------------------------------------------------------------------------


def test_a_seeded_reset_is_a_fresh_environment():
    """Also in this game, whose start depends on the resets since the ROM was loaded."""
    env, fresh = (make("beam_rider", repeat_action_probability=0.25, noop_max=0) for _ in range(2))
    first, second = fires(env, 5, seed=8), fires(env, 5, seed=None)
    assert not np.array_equal(first[-1][0], second[-1][0])
    for step, same in zip(fires(env, 15, seed=8), fires(fresh, 15, seed=8), strict=True):
        for mine, theirs in zip((*step[:4], *step[4].values()), (*same[:4], *same[4].values()), strict=True):
            assert np.array_equal(mine, theirs)


def test_environment_i_is_seeded_with_seed_plus_i():
    many = make(num_envs=2, max_num_frames_per_episode=12, repeat_action_probability=0.25)
    one = make(max_num_frames_per_episode=12, repeat_action_probability=0.25)
    together = fires(many, 8, seed=5)
    for i in range(2):
        for step, alone in zip(together, fires(one, 8, seed=5 + i), strict=True):
            assert np.array_equal(step[0][i], alone[0][0])
            assert step[4]["episode_frame_number"][i] == number(alone)


def test_noops_are_drawn_anew_for_every_episode_from_0_to_noop_max_minus_1():
    env = make("pong", 2, noop_max=4)

    def drawn():
        infos = [env.reset(seed=0)[1], *(env.reset()[1] for _ in range(15))]
        return np.array([info["episode_frame_number"] for info in infos]).T  # (2, 16)

    first, second = drawn()
    assert set(first) == set(second) == {0, 1, 2, 3}
    assert not np.array_equal(first, second)
    assert np.array_equal(drawn(), [first, second])


def test_seeds_are_integers_below_2_to_the_31():
    env = make(num_envs=2)
    for seed in (2**31 - 1, np.int64(3)):  # the second environment's would be too large; not Python's int
        with pytest.raises(TypeError):
            env.reset(seed=seed)


def test_the_number_of_threads_changes_nothing():
    def played(threads):
        env = make("ms_pacman", 2, num_threads=threads)
        rng, parts = np.random.default_rng(0), [env.reset(seed=0)[0]]
        for _ in range(60):
            *arrays, info = env.step(rng.integers(0, 9, 2))
            parts += [*arrays, *info.values()]
        return parts

    assert all(np.array_equal(one, two) for one, two in zip(played(1), played(2), strict=True))


# --- what must never be done ------------------------------------------------------------------------------


def test_a_reset_between_send_and_recv_answers_with_the_step():
    """And every step from then on with the one before."""
    env = make()
    noops = env.reset(seed=0)[1]["episode_frame_number"][0]
    env.send(np.array([FIRE]))
    assert env.reset(seed=1)[1]["episode_frame_number"][0] == noops + 4


def test_an_unsupported_rom_ends_the_process():
    """Without an error that could be caught; there are four such, though ALE lists them. So ask first."""
    code = "from ale_py.vector_env import AtariVectorEnv; AtariVectorEnv('combat', 1); print('alive')"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stdout == ""
    assert "Traceback" not in told.stderr
    supported = ale_py.ALEInterface.isSupportedROM
    assert supported(roms.get_rom_path("combat")) is None
    assert supported(roms.get_rom_path("pong")) == "pong"
