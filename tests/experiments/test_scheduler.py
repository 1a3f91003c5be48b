"""What runs next and how an end is judged, for every executor: shown with one that starts nothing."""

import dataclasses
import io
import json
import signal

import pytest
from done_cells import make_done, make_started, plan_of, write_status

from voidrl.config import to_json
from voidrl.errors import RunFolderError, RunInterrupted
from voidrl.experiments import cell as cell_module
from voidrl.experiments import run
from voidrl.experiments.board import Board
from voidrl.experiments.cell import DONE, HELD
from voidrl.experiments.executors.base import INTERRUPTED, Ended, Executor
from voidrl.experiments.record import write_record
from voidrl.experiments.state import state_of
from voidrl.runs import checkpoint, locks
from voidrl.runs.experiment_record import read_failure, write_failure

COMMAND = ["voidrl", "experiment", "demo"]
RANDOM, APT, TUNED, SCRATCH = FOLDERS = (
    "maze/random/seed2",
    "maze/apt/seed2",
    "goal/finetuned/seed2",
    "goal/scratch/seed2",
)


@pytest.fixture(scope="module")
def planned():
    return plan_of("demo", device="cpu")


@pytest.fixture
def plan(planned, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(run, "RETRY_SECONDS", 0.0)
    plan = dataclasses.replace(planned, out=tmp_path)
    write_record(plan, COMMAND)
    return plan


class Fake(Executor):
    """Ends every cell at the next poll as its script says; those without one are done.

    Args:
        plan: The plan whose cells it pretends to run.
        scripts: By cell, an end for each time it is submitted; a function is called when the process ends.
        attached: What an earlier command has submitted.
    """

    def __init__(self, plan, scripts=None, attached=(), room=10):
        self.plan, self.scripts, self.attached, self.room = plan, scripts or {}, attached, room
        self.submitted, self.active, self.calls = [], [], []

    def attach(self, cells):
        assert [*cells] == [cell.folder for cell in self.plan.cells]
        self.active += self.attached
        return {*self.attached}

    def has_room(self):
        return len(self.active) < self.room

    def submit(self, job):
        self.submitted.append(job["cell"])
        self.active.append(job["cell"])

    def poll(self):
        ended, self.active = {cell: self.end(cell) for cell in self.active}, []
        return ended

    def end(self, folder):
        script = self.scripts.get(folder, [])
        end = script.pop(0) if script else Ended(DONE)
        end = end() if callable(end) else end
        if end.code == DONE:
            [cell] = [cell for cell in self.plan.cells if cell.folder == folder]
            if not self.plan.path(cell).exists():
                make_done(self.plan, cell)
        return end

    def stop(self):
        self.calls.append("stop")

    def kill(self):
        self.calls.append("kill")

    def __exit__(self, *exc):
        self.calls.append("exit")


def work(executor):
    shown = io.StringIO()
    outcome = run.run_plan(executor.plan, executor, command=COMMAND, board=Board(shown))
    assert executor.calls[-1] == "exit"
    return outcome, shown.getvalue()


def test_each_cell_is_submitted_once_and_after_its_source(plan):
    executor = Fake(plan, room=1)
    outcome, shown = work(executor)
    assert outcome.ok
    assert sorted(executor.submitted) == sorted(FOLDERS)
    assert executor.submitted.index(APT) < executor.submitted.index(TUNED)
    assert "(4 of 4)" in shown
    again = Fake(plan)
    assert work(again)[0].ok
    assert again.submitted == []


def test_a_lost_cell_is_submitted_again_and_fails_if_it_gets_no_further(plan):
    lost = Ended(None, "node2 is gone", lost=True)
    executor = Fake(plan, {RANDOM: [lost] * (run.MAX_LOSSES - 1), APT: [lost] * 20})
    outcome, shown = work(executor)
    assert executor.submitted.count(RANDOM) == run.MAX_LOSSES
    assert "maze/random/seed2: node2 is gone; it is submitted again" in shown
    assert executor.submitted.count(APT) == run.MAX_LOSSES
    why = "node2 is gone, 3 times without a new checkpoint since step 0"
    assert outcome.failed == {APT: f"{why}; see {plan.out / 'logs' / APT}.log"}
    assert outcome.waiting == {TUNED: APT}
    assert read_failure(plan.out, APT) == why


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (Ended(2), "a sentence of its own"),
        (Ended(1), "its process ended with exit status 1"),
        (Ended(None, "it was canceled"), "it was canceled"),
    ],
)
def test_how_a_process_ended_in_a_sentence(plan, end, why):
    def fail():
        if end.code == 2:
            write_failure(plan.out, APT, why)
        return end

    outcome, _ = work(Fake(plan, {APT: [fail]}))
    assert outcome.failed[APT].startswith(f"{why}; see ")
    assert read_failure(plan.out, APT) == why


def test_losses_between_which_a_cell_gets_further_do_not_count(plan):
    cell, steps = plan.cells[0], iter(range(16, 1000, 16))

    def lose():
        folder = plan.path(cell) if plan.path(cell).exists() else make_started(plan, cell)
        (folder / "checkpoints" / f"step_{next(steps):012}").mkdir(parents=True)
        return Ended(None, "its time is up", lost=True)

    def finish():
        write_status(plan.path(cell), "done", checkpoint=cell.config.steps, steps=cell.config.steps)
        return Ended(DONE)

    executor = Fake(plan, {RANDOM: [lose] * 12 + [finish]})
    outcome, shown = work(executor)
    assert outcome.ok
    assert executor.submitted.count(RANDOM) == 13
    assert "maze/random/seed2: resuming at step 192 of 16000" in shown


def test_a_killed_process_is_started_again_and_one_that_was_asked_to_stop_is_not(plan):
    executor = Fake(plan, {RANDOM: [Ended(-signal.SIGKILL)], APT: [Ended(INTERRUPTED)]})
    outcome, shown = work(executor)
    assert executor.submitted.count(RANDOM) == 2
    assert "by SIGKILL; the kernel does that when memory runs out; it is submitted again" in " ".join(
        shown.split()
    )
    assert executor.submitted.count(APT) == 1
    assert "a signal stopped its process" in outcome.failed[APT]


@pytest.mark.parametrize("appear", [True, False])
def test_a_process_is_done_if_its_results_appear_here(plan, monkeypatch, appear):
    looks = []

    def look(cell, folder):
        looks.append(cell.folder)
        if appear and looks.count(APT) == 10:  # a network file system shows them late
            make_done(plan, cell)
        return state_of(cell, folder)

    class Forgetful(Fake):
        def end(self, folder):
            return Ended(DONE) if folder == APT else super().end(folder)

    monkeypatch.setattr(run, "APPEAR_SECONDS", 60.0 if appear else 0.1)
    monkeypatch.setattr(run, "state_of", look)
    executor = Forgetful(plan)
    outcome, _ = work(executor)
    assert outcome.ok is appear
    assert executor.submitted.count(APT) == 1
    if not appear:
        why = f"its process says that it is done, but its results are not in {plan.out / APT}: run the same"
        assert outcome.failed[APT].startswith(why)
        assert outcome.waiting == {TUNED: APT}
        assert read_failure(plan.out, APT).startswith(why)


def test_cells_of_an_earlier_command_are_not_submitted_again(plan):
    make_done(plan, plan.cells[0])  # ended while nobody was looking; its executor still returns it
    executor = Fake(plan, attached=[RANDOM, APT])
    outcome, shown = work(executor)
    assert outcome.ok
    assert sorted(executor.submitted) == sorted([TUNED, SCRATCH])
    assert "maze/apt/seed2: submitted by an earlier command" in shown
    assert "maze/random" not in shown


def test_a_cell_that_another_process_holds_is_left_to_it_and_taken_over(plan):
    path = locks.cell_lock_path(plan.out, SCRATCH)
    held = [locks.acquire(path)]
    locks.sign(held[0])

    def give_back():
        locks.release(held.pop())
        return Ended(DONE)

    executor = Fake(plan, {RANDOM: [Ended(HELD)], TUNED: [give_back]})
    outcome, shown = work(executor)
    assert outcome.ok
    assert executor.submitted.count(RANDOM) == 2  # its process found the lock taken
    assert executor.submitted[-1] == SCRATCH
    assert "goal/scratch/seed2: left to process" in shown
    assert "goal/scratch/seed2: train, 8000 steps, taken over" in shown


def test_a_cell_that_cannot_be_submitted_fails_and_stops_no_other(plan):
    class Refusing(Fake):
        def submit(self, job):
            if job["cell"] == APT:
                raise OSError("no room on the disk")
            super().submit(job)

    outcome, _ = work(Refusing(plan))
    assert outcome.failed == {APT: "no room on the disk"}
    assert outcome.waiting == {TUNED: APT}
    assert not locks.is_held(locks.cell_lock_path(plan.out, APT))


@pytest.mark.parametrize("detaches", [True, False])
def test_a_signal_stops_cells_or_leaves_them_to_their_cluster(plan, detaches):
    def interrupted():
        signal.raise_signal(signal.SIGTERM)
        return Ended(DONE)

    class Slow(Fake):
        def poll(self):
            if self.submitted and "stop" not in self.calls:  # APT trains until it is asked to stop
                self.active.remove(APT)
                ended = super().poll()
                self.active.append(APT)
                return ended
            return super().poll()

    executor = Slow(plan, {RANDOM: [interrupted], APT: [Ended(INTERRUPTED)], SCRATCH: [Ended(DONE)]})
    executor.detaches = detaches
    said = "1 run left in the cluster" if detaches else "to resume, run the same command again: voidrl"
    with pytest.raises(RunInterrupted, match=f"stopped by SIGTERM with 2 of 4 runs done; .*{said}"):
        work(executor)
    assert executor.calls == (["exit"] if detaches else ["stop", "exit"])
    assert read_failure(plan.out, APT) == ""


def test_a_second_interrupt_kills_what_does_not_detach(plan):
    def interrupt():
        raise KeyboardInterrupt

    executor = Fake(plan, {RANDOM: [interrupt]})
    with pytest.raises(KeyboardInterrupt):
        work(executor)
    assert executor.calls == ["kill", "exit"]


# The process of a cell that takes its lock itself


def job_of(plan, cell):
    return run.Scheduler(plan, Fake(plan), COMMAND, Board(io.StringIO())).make_job(cell)


@pytest.fixture
def process(monkeypatch):
    """Runs `cell._work` on a job, in this process; the cell itself is not trained."""
    trained, adopted = [], []
    monkeypatch.setattr(cell_module, "do_job", lambda job: trained.append(job["cell"]))
    monkeypatch.setattr(cell_module, "_stop_with_parent", lambda *_: None)
    monkeypatch.setattr(locks, "adopt", adopted.append)
    monkeypatch.setattr(cell_module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(cell_module, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(cell_module.sys, "argv", [])

    def work(job):
        line = json.dumps(job).encode() + b"\n"
        monkeypatch.setattr(cell_module.sys, "stdin", io.TextIOWrapper(io.BytesIO(line)))
        try:
            return cell_module._work(), [*trained]
        finally:
            for lock in adopted:
                locks.release(lock)
            adopted.clear()
            trained.clear()

    return work


@pytest.mark.parametrize("line", [b"", b'{"command": ["voi'])
def test_a_process_whose_parent_was_killed_before_it_had_its_job(monkeypatch, capfd, line):
    monkeypatch.setattr(cell_module.sys, "stdin", io.TextIOWrapper(io.BytesIO(line)))
    assert cell_module._work() == INTERRUPTED
    assert "the command that started this process has ended" in capfd.readouterr().err


def test_a_process_elsewhere_takes_the_lock_waits_for_it_and_gives_up(plan, process, monkeypatch):
    job = job_of(plan, plan.cells[0])
    path = locks.cell_lock_path(plan.out, RANDOM)
    assert process(job) == (DONE, [RANDOM])
    held = locks.acquire(path)
    assert process(job) == (HELD, [])
    # The process before it is still ending: it gets the lock as soon as that has ended.
    acquire, tries = locks.acquire, []

    def acquire_third(path):
        tries.append(path)
        if len(tries) == 3:
            locks.release(held)
        return acquire(path)

    monkeypatch.setattr(cell_module, "PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(locks, "acquire", acquire_third)
    assert process(job) == (DONE, [RANDOM])
    assert len(tries) == 3


def test_a_queued_cell_is_judged_when_it_starts(plan, process):
    done, other = plan.cells[0], plan.cells[1]
    make_done(plan, done)
    assert process(job_of(plan, done)) == (DONE, [])  # another command has done it meanwhile
    folder = make_started(plan, other)
    changed = {**to_json(other.config), "seed": 77}
    checkpoint.write_json_atomic(folder / "config.json", changed)
    assert process(job_of(plan, other)) == (cell_module.BAD_INPUT, [])
    assert "holds a run with other settings: seed is 77" in read_failure(plan.out, APT)
    with pytest.raises(RunFolderError, match="seed is 77"):
        cell_module._is_done(job_of(plan, other))
