"""The time of a run is projected once, after its first updates, with what to lower if it is hours."""

from __future__ import annotations

from dataclasses import replace

import pytest

import voidrl
from voidrl.config import Config, FinetuneConfig, update
from voidrl.training.metrics import projection
from voidrl.training.metrics.projection import Projection, cheaper


class Run:
    """Steps at a constant rate, with a warm-up of ten steps before the first update."""

    def __init__(self, steps, rate, *, waits=0.0, **options):
        self.now, self.rate, self.waits = 50.0, rate, waits
        config = update(Config(), {"steps": steps})
        self.watch = Projection(config, on_cpu=True, clock=lambda: self.now, **{"learns": True, **options})

    def said(self, seconds):
        found = []
        for i in range(int(seconds * self.rate)):
            self.now += 1 / self.rate
            passed = self.now - 50
            text = self.watch.look(i + 1, max(0, i - 10), self.waits * passed)
            if text:
                found.append((round(passed, 1), text))
        return found


def test_it_is_said_once_a_few_seconds_after_the_first_update():
    ((when, text),) = Run(14 * 60 * 230, 230).said(30)
    assert 6 <= when < 7
    assert text == "about 13m54s more, at 230 steps/s"


def test_a_short_run_needs_no_announcement():
    assert Run(3000, 230).said(12) == []


def test_nothing_is_projected_from_a_warm_up():
    run = Run(10**6, 100)
    assert [run.watch.look(steps, 0, 0.0) for steps in range(1000)] == [None] * 1000


def test_a_random_agent_has_no_updates_to_wait_for():
    run = Run(10**6, 100, learns=False)
    run.watch.look(1, 0, 0.0)
    for _ in range(2):
        run.now += 5
        text = run.watch.look(501, 0, 0.0)
    assert text is None  # no steps in between, so no rate
    run.now += 5
    assert run.watch.look(1001, 0, 0.0) == "about 5h33m more, at 50 steps/s"


def test_hours_come_with_what_to_lower():
    ((_, text),) = Run(100_000, 3).said(30)
    assert text.startswith("about 9h")
    assert "updates_per_step 0.25 (now 2)" in text
    assert "learner.batch_size 64 (now 256)" in text
    assert text.endswith("preset cpu, or fewer steps")


def test_slow_environments_are_named_instead():
    ((_, text),) = Run(100_000, 3, waits=0.8).said(30)
    assert "environments take 80% of it" in text
    assert "env.num_envs above 1" in text
    assert "updates_per_step" not in text


def test_only_what_would_help_is_named():
    small = update(Config(), {"updates_per_step": 0.1, "learner.batch_size": 32, "learner.hidden_dim": 64})
    small = update(small, {"representation.batch_size": 32})
    assert cheaper(small, None, on_cpu=True) == "less takes fewer steps"
    tuned = replace(Config(), phase="finetune", finetune=FinetuneConfig())
    text = cheaper(tuned, None, on_cpu=True)
    assert "updates_per_step" in text
    for fixed in ("hidden_dim", "representation", "preset"):
        assert fixed not in text


def test_a_run_says_and_logs_it_and_shows_the_return(tmp_path, capsys, monkeypatch):
    for name in ("SETTLE_SECONDS", "LOOK_SECONDS", "SHORT_SECONDS"):
        monkeypatch.setattr(projection, name, 0.0)
    small = {
        "warmup_steps": 20,
        "learner": {"hidden_dim": 16, "batch_size": 16},
        "updates_per_step": 0.25,
        "log": {"log_every_steps": 50, "tensorboard": False},
    }
    voidrl.train("CartPole-v1", steps=150, out=tmp_path / "run", config=small)
    said = capsys.readouterr().err
    assert said.count(" more, at ") == 1
    assert " more, at " in (tmp_path / "run" / "log.txt").read_text()
    line = [line for line in said.splitlines() if line.startswith("train CartPole-v1")][-1]
    shown = float(line.partition("  return ")[2].split()[0])
    assert 8 <= shown <= 150  # of whole episodes: random play lasts about 20 steps


def test_pretraining_shows_no_return(tmp_path, capsys):
    small = {
        "warmup_steps": 200,
        "learner.hidden_dim": 16,
        "log.log_every_steps": 50,
        "updates_per_step": 0.25,
    }
    voidrl.pretrain("CartPole-v1", steps=150, out=tmp_path / "run", config=small)
    assert "  return " not in capsys.readouterr().err


@pytest.mark.parametrize("device", [True, False])
def test_a_gpu_is_not_sent_to_the_preset_for_cpus(device):
    assert ("preset cpu" in cheaper(Config(), None, on_cpu=device)) == device
