"""Numbers read well, plain lines stay rare, and the bar keeps to one line on a terminal of any width."""

import io
import math
import re
import sys

import pytest
from pseudo_terminals import PseudoTerminal, widest

import voidrl
from voidrl.cli import main as cli
from voidrl.errors import ConfigError
from voidrl.report.curves import NAMES
from voidrl.system.terminal.progress import Progress
from voidrl.system.units import human_bytes, human_count, human_seconds, parse_count

TITLE = "pretrain voidrl/PixelMaze-v0"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def train(stream, *, total=100_000, seconds_per_update=5.0, **kwargs):
    """Ten updates of a tenth of the steps each."""
    clock = Clock()
    fields = {"reward": 0.98, "extrinsic": 0.0, "return": -12.345, "coverage": 0.5}
    with Progress(total, title=TITLE, stream=stream, clock=clock, **kwargs) as progress:
        for i in range(1, 11):
            clock.now += seconds_per_update
            progress.update(i * total // 10, fields, updates=i * 1000)


COUNTS = {0: "0", 7: "7", 999: "999", 1000: "1k", 12_345: "12.3k", 100_000: "100k", 999_999: "1M",
          2.5e9: "2.5B", 1_234_567: "1.23M", 3e12: "3T", -12_345: "-12.3k", 0.98: "0.98", 0.123456: "0.123",
          999.7: "1k", math.nan: "nan", -math.inf: "-inf"}  # fmt: skip
SIZES = {0: "0 bytes", 512: "512 bytes", 145_000: "145 kB", 999_600: "1 MB", 2.31849828352e11: "232 GB",
         2e15: "2000 TB"}  # fmt: skip
SECONDS = {0: "0s", 0.4: "0s", 59.7: "1m00s", 73: "1m13s", 3599: "59m59s", 3600: "1h00m", 7380: "2h03m",
           90_000: "1d01h", -3: "0s", math.inf: "?"}  # fmt: skip


def test_numbers_are_written_for_people():
    assert [human_count(value) for value in COUNTS] == [*COUNTS.values()]
    assert [human_bytes(size) for size in SIZES] == [*SIZES.values()]
    assert [human_seconds(seconds) for seconds in SECONDS] == [*SECONDS.values()]


COUNTED = {"1M": 10**6, "1_000_000": 10**6, "1.5E3": 1500, "1e+3": 1000, " 12 ": 12, 1e6: 10**6, "1.1k": 1100}


def test_parse_count():
    found = [parse_count(value) for value in COUNTED]
    assert found == [*COUNTED.values()]  # 1.1k exactly, where 1.1 * 1000 in floats is not
    assert {*map(type, found)} == {int}


WORDS = ["0", "-5", "0.5", "1.0005k", "", "ten", "1e-3", "1__0", "1kk", "inf", "1e999999999", "1,000", "٣"]


@pytest.mark.parametrize("value", [*WORDS, 0, -1, 0.5, math.nan, True, None])
def test_parse_count_refuses_the_rest_in_one_sentence(value):
    with pytest.raises(ConfigError) as error:
        parse_count(value, "warmup_steps")
    assert str(error.value) == (
        f"warmup_steps must be a positive whole number such as 1M, 100k, 1e6 or 1_000_000; got {value!r}"
    )


def test_plain_lines_are_the_first_the_last_and_one_every_half_minute():
    stream = io.StringIO()
    train(stream, seconds_per_update=12.0)
    lines = stream.getvalue().splitlines()
    assert [re.search(r"(\d+)%", line)[1] for line in lines] == ["10", "40", "70", "100"]
    assert lines[1] == (
        f"{TITLE}  40%  40k/100k  eta 1m12s  833 steps/s  83.3 updates/s  "
        "reward 0.98  extrinsic 0  return -12.3  coverage 0.5"
    )
    assert "took 2m00s" in lines[-1]
    assert "\x1b" not in stream.getvalue()


def test_a_resumed_run_counts_only_its_own_work():
    stream, clock = io.StringIO(), Clock()
    with Progress(100_000, 50_000, initial_updates=9000, stream=stream, clock=clock) as progress:
        clock.now += 10.0
        progress.update(51_000, updates=9500)
    assert stream.getvalue() == "51%  51k/100k  eta 8m10s  100 steps/s  50 updates/s\n"


def test_the_fast_steps_of_a_warm_up_do_not_count_as_time_left():
    stream, clock = io.StringIO(), Clock()
    with Progress(10_000, warmup_steps=1000, stream=stream, clock=clock) as progress:
        for step, updates, seconds in ((8, 0, 0.01), (1000, 0, 1), (1001, 1, 0.1), (1301, 301, 30)):
            clock.now += seconds
            progress.update(step, updates=updates)
    assert stream.getvalue().splitlines() == [
        "0%  8/10k  warm-up until 1k",
        "13%  1.3k/10k  eta 14m30s  10 steps/s  10 updates/s",
    ]


def test_rates_follow_a_change_of_pace_and_average_at_the_end():
    stream, clock = io.StringIO(), Clock()
    with Progress(2000, stream=stream, clock=clock) as progress:
        for steps in (10, 100):  # steps/s for 100 s, then for 10 s
            for _ in range(1000 // steps):
                clock.now += 1.0
                progress.update(progress._now[1] + steps)
    lines = stream.getvalue().splitlines()
    assert " 10 steps/s" in lines[3]
    assert lines[-1] == "100%  2k/2k  took 1m50s  18.2 steps/s"


@pytest.mark.usefixtures("plain_terminal")
class TestOnARealTerminal:
    def test_no_line_of_a_run_is_wider(self, monkeypatch, tmp_path):
        with PseudoTerminal(40) as terminal:
            for name in ("stdout", "stderr"):
                monkeypatch.setattr(sys, name, terminal.stream)
            words = "pretrain tiny_runs:Walk --steps 60 --device cpu --log.tensorboard False --warmup-steps 8"
            words += " --learner.batch-size 8 --learner.hidden-dim 8 --log.log-every-steps 10"
            words += " --updates-per-step 0.2"
            assert cli.main([*words.split(), "--out", str(tmp_path / "run")]) == 0
            monkeypatch.undo()
            text, lines = terminal.text(), terminal.lines()
        bars = [line for line in lines if "%" in line]
        assert bars
        assert widest(bars) <= 40
        assert "pretrain tiny_runs:Walk" in lines
        assert "100%" in bars[-1]
        assert "\r\x1b[2K" in text
        assert not re.search("[\U0001f300-\U0001faff\u2600-\u27bf]", text)  # no emoji

    def test_the_bar_follows_the_window(self):
        clock = Clock()
        with PseudoTerminal(100) as terminal:
            with Progress(1000, title=TITLE, stream=terminal.stream, clock=clock) as progress:
                for step, columns in enumerate((100, 50, 30, 0, 120), start=1):
                    terminal.resize(columns)
                    clock.now += 1.0
                    progress.update(100 * step, {"intrinsic": 0.5, "extrinsic": 0.25}, updates=step)
                    progress.update(100 * step + 1)  # too soon to draw again
            title, *bars = terminal.lines()
        assert title == TITLE
        for bar, columns in zip(bars, (100, 50, 30, 80, 120), strict=False):
            assert len(bar.rstrip()) <= columns
        assert [len(bar.rstrip()) > 30 for bar in bars[:5]] == [True, True, False, True, True]
        assert "extrinsic" in bars[4]


@pytest.mark.parametrize(
    ("learner", "label"),
    [
        ({"n_step": 3}, "intrinsic in 3 steps"),
        ({"n_step": 2, "n_step_end": 4}, "intrinsic in 4 steps"),
        ({"n_step": 3, "intrinsic_n_step": "single"}, "intrinsic"),
        ({}, "intrinsic"),
    ],
)
def test_a_sum_of_rewards_is_shown_as_one(tmp_path, capsys, learner, label):
    config = {"learner": {"batch_size": 8, "hidden_dim": 8, **learner}, "warmup_steps": 8}
    voidrl.pretrain(
        "CartPole-v1", "rnd", steps=24, preset="none", device="cpu", out=tmp_path / "run", config=config
    )
    [shown] = set(re.findall(r"  (intrinsic[a-z0-9 ]*) [-0-9.]+", capsys.readouterr().err))
    assert shown == label
    assert NAMES["train/reward_mean"].endswith("(n-step)")
