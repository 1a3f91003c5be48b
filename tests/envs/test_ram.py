"""Distinct states of the emulator: exact counts, shadows that follow and notice when they do not, workers."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from voidrl.envs.ram import MEASURES, StateCounter, addresses_of
from voidrl.envs.ram_worker import FRESH, LOAD, STEP, DisagreementError, Shadow
from voidrl.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailedError,
    MissingExtraError,
    UnknownNameError,
)

ale_py = pytest.importorskip("ale_py")
from ale_py import roms  # noqa: E402
from ale_py.vector_env import AtariVectorEnv  # noqa: E402

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
ENVS = 2


class Recording:
    """A random policy's steps in N games, as the arguments of `StateCounter.step`, and the RAM after each."""

    def __init__(self, rom, steps, seed=0, max_frames=108_000, full=False, envs=ENVS, screens=False):
        height, width = (210, 160) if screens else (84, 84)
        vector = AtariVectorEnv(
            rom,
            envs,
            img_height=height,
            img_width=width,
            stack_num=1,
            maxpool=not screens,
            use_fire_reset=False,
            reward_clipping=False,
            life_loss_info=seed % 2 == 1,
            full_action_space=full,
            max_num_frames_per_episode=max_frames,
        )
        rng = np.random.default_rng(seed)
        obs, info = vector.reset(seed=seed)
        self.start = info["episode_frame_number"].copy()
        self.screens = [obs[:, 0].copy()]
        self.steps, ended, lives = [], np.zeros(envs, bool), info["lives"]
        self.lost_lives = self.truncations = 0
        for _ in range(steps):
            actions = rng.integers(vector.single_action_space.n, size=envs)
            obs, score, terminated, truncated, info = vector.step(actions)
            frames, now = info["episode_frame_number"].copy(), info["lives"].copy()
            self.steps.append((actions, ended, ~ended, frames, now, score.copy()))
            lost = (now < lives) & (now > 0) & ~ended  # with life_loss_info `terminated` means that too
            self.lost_lives += int(lost.sum())
            self.truncations += int((truncated & ~ended).sum())
            self.screens.append(obs[:, 0].copy())
            ended, lives = ((terminated & ~lost) | truncated) & ~ended, now
        vector.close()
        self.fresh = np.array([step[1] for step in self.steps])  # (T, N)

    def feed(self, counter, upto=None):
        counter.reset(self.start)
        for step in self.steps[:upto]:
            counter.step(*step)


@functools.cache
def recording(rom, steps, seed=0, max_frames=108_000, full=False, envs=ENVS):
    return Recording(rom, steps, seed, max_frames, full, envs)


def _emulator(rom):
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.setInt("random_seed", 77)  # must not matter
    emulator.loadROM(roms.get_rom_path(rom))
    return emulator


def shadow_of(rom):
    return Shadow(ale_py, {"rom_path": str(roms.get_rom_path(rom)), "full_actions": False}, 0)


@functools.cache
def by_hand(rom, played, full=False, max_frames=108_000):
    """RAM after every step of emulators that are driven frame by frame here, (T, N, 128)."""
    found = np.zeros((*played.fresh.shape, 128), np.uint8)
    for i in range(played.fresh.shape[1]):
        emulator = _emulator(rom)
        actions = emulator.getLegalActionSet() if full else emulator.getMinimalActionSet()
        over, frames = True, played.start[i]
        for t in range(-1, len(played.steps)):
            if over:
                assert t < 0 or played.fresh[t, i]
                frames = played.start[i] if t < 0 else played.steps[t][3][i]
                emulator.reset_game()
                while emulator.getEpisodeFrameNumber() < frames:
                    emulator.act(ale_py.Action.NOOP)
                over, first = False, frames
            else:
                for frame in range(frames, frames + 4):
                    emulator.act(actions[played.steps[t][0][i]])
                    over = emulator.game_over() or frame + 1 - first >= max_frames
                    if over:
                        break
                frames = frame + 1
            found[t, i] = emulator.getRAM()
    return found


def distinct(rom, rams):
    """Counts of (n, 128) by measure."""
    return {m: len(np.unique(rams[:, found], axis=0)) for m, found in addresses_of(rom).items()}


@pytest.fixture
def counter_of():
    made = []

    def make(rom="breakout", num_envs=ENVS, **options):
        made.append(StateCounter(rom, num_envs, **options))
        return made[-1]

    yield make
    for counter in made:
        counter.close()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


# Lost lives and games over in breakout and berzerk; a start after frames of a menu in berzerk; no lives in
# pong; an episode's greatest length that is, and is not, a multiple of the four frames.
@pytest.mark.parametrize(
    ("rom", "steps", "seed", "max_frames", "full", "envs"),
    [
        ("breakout", 150, 9, 108_000, False, 2),
        ("berzerk", 135, 3, 108_000, True, 2),
        ("pong", 45, 0, 123, True, 1),
    ],
)
def test_counts_are_those_of_emulators_driven_by_hand(rom, steps, seed, max_frames, full, envs, counter_of):
    played = recording(rom, steps, seed, max_frames, full, envs)
    counter = counter_of(rom, envs, full_actions=full)
    played.feed(counter)
    rams = by_hand(rom, played, full, max_frames)
    assert counter.counts() == distinct(rom, rams[~played.fresh])
    assert played.fresh.any()
    assert (played.truncations > 0) == (max_frames < 108_000)
    if rom == "breakout":
        assert played.lost_lives > 5


def test_the_number_of_workers_changes_nothing(counter_of):
    played = recording("breakout", 150, 9)
    counts = []
    for workers in (1, 9):
        counter = counter_of(workers=workers)
        assert len(counter._workers) == min(workers, ENVS)
        played.feed(counter, upto=60)
        counts.append(counter.counts())
    assert counts[0] == counts[1]


def test_starts_and_steps_that_do_not_count_are_left_out(counter_of):
    played = recording("breakout", 150, 9)
    rams = by_hand("breakout", played)
    counter = counter_of()
    counter.reset(played.start)
    assert counter.counts() == {"ram": 0, "variables": 0, "positions": 0}
    only = np.zeros_like(played.fresh)
    only[20:, 1] = True
    for t, (actions, fresh, _, *seen) in enumerate(played.steps):
        counter.step(actions, fresh, only[t], *seen)
        if t == 19:
            assert counter.counts() == {"ram": 0, "variables": 0, "positions": 0}
    assert played.fresh[only].any()  # where a game starts, `counted` is not asked
    assert counter.counts() == distinct("breakout", rams[only & ~played.fresh])
    assert counter.counts()["ram"] < only.sum()


def test_counting_goes_on_from_a_saved_state(counter_of):
    first, second = recording("breakout", 150, 9), recording("breakout", 40, 2)
    whole = counter_of()
    first.feed(whole, upto=60)
    saved, counts = whole.state(), whole.counts()
    assert {m: len(rows) for m, rows in saved.items()} == {**counts, "positions_recent": counts["positions"]}
    assert {m: (rows.shape[1], rows.dtype) for m, rows in saved.items()} == {
        "ram": (16, np.uint8),
        "variables": (16, np.uint8),
        "positions": (1, np.uint8),
        "positions_recent": (1, np.uint8),
    }
    second.feed(whole)  # the same counter after another reset
    resumed = counter_of(workers=1)
    second.feed(resumed, upto=9)  # forgotten: it is not in what is loaded
    resumed.load(saved)
    assert resumed.counts() == counts
    second.feed(resumed)
    assert resumed.counts() == whole.counts()
    assert resumed.counts()["ram"] > counts["ram"]
    assert resumed.recent() == whole.recent()  # the window goes on, too
    for measure, rows in whole.state().items():
        assert {*map(bytes, rows)} == {*map(bytes, resumed.state()[measure])}


def test_merged_counters_count_each_state_once(counter_of):
    first, second = recording("breakout", 150, 9), recording("breakout", 40, 2)
    whole, mine, other = counter_of(), counter_of(workers=1), counter_of(workers=1)
    for played in (first, second):
        played.feed(whole)
    first.feed(mine)
    second.feed(other)
    mine.merge(other.state())
    other.clear()
    assert {*other.counts().values()} == {0}
    mine.merge(other.state())
    assert mine.counts() == whole.counts()
    assert mine.recent() == whole.recent()


def test_recent_positions_are_those_of_a_window(counter_of):
    played = recording("breakout", 150, 9)
    rams, counter = by_hand("breakout", played), counter_of()
    counter.reset(played.start)
    for t, (actions, fresh, _, *seen) in enumerate(played.steps):
        counter.step(actions, fresh, ~fresh, *seen)
        if t in (59, 149):
            window = slice(0, 60) if t == 59 else slice(60, 150)
            expected = distinct("breakout", rams[window][~played.fresh[window]])
            assert counter.recent() == {"positions_recent": expected["positions"]}
    assert counter.recent() == {"positions_recent": 0}


def test_a_state_of_another_game_is_refused(counter_of):
    counter = counter_of("breakout", workers=1)
    with pytest.raises(CheckpointError, match=r"counter of 'breakout'.*another game"):
        counter.load({"ram": np.zeros((9, 16), np.uint8), "positions": np.zeros((9, 2), np.uint8)})


def test_a_shadow_that_went_astray_is_noticed(counter_of):
    played = recording("breakout", 150, 9)
    counter = counter_of(workers=1)

    def feed_and_count():
        counter.reset(played.start)
        for t, (actions, *seen) in enumerate(played.steps):
            astray = (np.arange(ENVS) == 1) & (t >= 40)  # one wrong action alone need not show
            counter.step(np.where(astray, (actions + 1) % 4, actions), *seen)
        counter.counts()

    noticed = (
        r"game 1 at its step \d+: frame \d+, lives \d and score \d in the shadow, frame \d+, lives \d and"
    )
    with pytest.raises(EnvironmentFailedError, match=noticed):
        feed_and_count()
    with pytest.raises(EnvironmentFailedError, match=noticed):  # and again
        counter.step(*played.steps[0])
    with pytest.raises(EnvironmentFailedError, match=noticed):
        counter.state()


def test_frame_lives_and_score_must_agree():
    played = recording("breakout", 150, 9)
    shadow = shadow_of("breakout")
    shadow.repeat(LOAD, 0, played.start[0], -1, 0)
    for t, step in enumerate(played.steps):
        action, fresh, _, frame, lives, score = (values[0] for values in step)
        if t == 40:
            with pytest.raises(DisagreementError, match=rf"step 41: frame {frame}, .* frame {frame + 1}, "):
                shadow.repeat(STEP, action, frame + 1, lives, score)
        elif t == 41:
            with pytest.raises(DisagreementError, match=rf"step 42: .* lives {lives} .* lives {lives - 1} "):
                shadow.repeat(STEP, action, frame, lives - 1, score)
        elif t == 42:
            with pytest.raises(DisagreementError, match=rf"step 43: .* score {score} .* score {score + 1} "):
                shadow.repeat(STEP, action, frame, lives, score + 1)
        elif fresh:
            with pytest.raises(DisagreementError, match=r"step \d+: the game continued after its end"):
                shadow.repeat(STEP, action, frame, lives, score)
            break
        else:
            shadow.repeat(STEP, action, frame, lives, score)
    assert t > 100


def test_a_shadow_shows_the_screens_of_its_game():
    rom = "berzerk"  # in which a later game starts in another state than the first one
    played = Recording(rom, 120, seed=3, max_frames=121, envs=1, screens=True)
    shadow, compared = shadow_of(rom), 0
    for t, screen in enumerate(played.screens):
        if t == 0:
            shadow.repeat(LOAD, 0, played.start[0], -1, 0)
        else:
            action, fresh, _, frame, lives, score = (values[0] for values in played.steps[t - 1])
            shadow.repeat(FRESH if fresh else STEP, action, frame, lives, score)
        if not shadow.ended:  # the last frame of a game is not drawn by ALE's vector environment
            assert np.array_equal(shadow.ale.getScreenGrayscale().reshape(screen[0].shape), screen[0])
            compared += 1
    assert compared > 110
    assert played.fresh.sum() >= 3
    with pytest.raises(DisagreementError, match="game 0 at its step 121: frame"):
        shadow.repeat(FRESH, 0, 1000, 0, 0)


def test_games_without_annotations_count_whole_memories_only(counter_of):
    played = recording("alien", 20, envs=1)
    counter = counter_of("alien", 1)
    played.feed(counter)
    assert counter.counts() == distinct("alien", by_hand("alien", played).reshape(-1, 128))
    assert [*counter.counts()] == ["ram"]
    assert "variables" not in addresses_of("alien")


def test_positions_of_another_room_are_other_positions():
    assert addresses_of("ms_pacman")["positions"] == [10, 16]
    assert addresses_of("montezuma_revenge")["positions"] == [42, 43, 3]
    assert addresses_of("venture")["positions"] == [85, 26, 90]
    assert addresses_of("freeway")["positions"] == [14]
    assert [*addresses_of("video_pinball")] == ["ram", "variables"]
    assert len(addresses_of("ms_pacman")["variables"]) == 17
    assert [*addresses_of("pong")] == [*MEASURES]
    assert "variables" in addresses_of("pong")


def test_a_killed_worker_is_an_error_and_not_a_wait(counter_of):
    played = recording("breakout", 150, 9)
    counter = counter_of(workers=2)

    def feed_and_count():
        played.feed(counter, upto=20)
        return counter.counts()

    assert feed_and_count() == feed_and_count()
    victim = counter._workers[1].process
    victim.kill()
    victim.wait()
    died = f"worker process {victim.pid} ended by signal SIGKILL"
    with pytest.raises(EnvironmentFailedError, match=died):
        feed_and_count()
    with pytest.raises(EnvironmentFailedError, match=died):
        counter.counts()
    counter.close()
    counter.close()
    assert not any(alive(worker.process.pid) for worker in counter._workers)
    with pytest.raises(EnvironmentFailedError):
        counter.step(*played.steps[0])


def test_a_worker_that_hangs_is_an_error_and_not_a_wait(counter_of):
    played = recording("breakout", 150, 9)
    counter = counter_of(workers=1)
    played.feed(counter, upto=20)
    counter.counts()
    counter._timeout_s = 0.3
    os.kill(counter._workers[0].process.pid, signal.SIGSTOP)

    def go_on():
        played.feed(counter, upto=20)
        while True:  # until no more fits into the pipe, or too many messages are unanswered
            counter.step(*played.steps[0])

    hangs = r"'breakout' cannot be counted: worker process \d+ has given no answer for 0\.3 s \(raise env"
    with pytest.raises(EnvironmentFailedError, match=hangs):
        go_on()


def test_workers_outlive_signals_to_the_group_and_load_no_torch(counter_of):
    played = recording("breakout", 150, 9)
    counter = counter_of(workers=1)
    process, counts = counter._workers[0].process, []
    played.feed(counter, upto=10)
    for steps in (played.steps[10:20], played.steps[20:30]):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)  # the first time while it starts
        for step in steps:
            counter.step(*step)
        counts.append(counter.counts()["ram"])
    assert 20 < counts[0] < counts[1]
    assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())  # the parent's own are as before


SCRIPT = """
import os, sys
import numpy as np
from voidrl.envs.ram import StateCounter
counter = StateCounter("pong", 2, workers=2)  # not below `if __name__ == "__main__"`, and never closed
counter.reset(np.array([3, 4]))
if sys.argv[1] == "die":
    counter.counts()
print(*(worker.process.pid for worker in counter._workers), flush=True)
if sys.argv[1] == "die":
    if os.fork() == 0:
        os.close(1)
        os.read(0, 1)  # a fork that lives on holds the pipes open
        os._exit(0)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["end", "die"])
def test_workers_end_with_a_parent_that_closes_nothing(how, tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    command = [sys.executable, str(tmp_path / "script.py"), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.wait(20)
        assert len(pids) == 2
        assert until(lambda: not any(alive(pid) for pid in pids))
        process.stdin.close()


def test_a_counter_that_nobody_holds_ends_its_workers():
    counter = StateCounter("pong", 1)
    process = counter._workers[0].process
    del counter
    assert process.returncode == -signal.SIGKILL


def test_what_cannot_be_counted(monkeypatch):
    with pytest.raises(UnknownNameError, match="did you mean 'ms_pacman'"):
        StateCounter("mspacman", 2)
    with pytest.raises(ConfigError, match="states of 0 games"):
        StateCounter("pong", 0)
    with pytest.raises(ConfigError, match="by 0 workers"):
        StateCounter("pong", 2, workers=0)
    monkeypatch.setitem(sys.modules, "ale_py.roms", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'voidrl\[atari\]'"):
        StateCounter("pong", 2)
