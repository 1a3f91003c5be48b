"""A schedule on paper: when the cells of a plan would run on given machines, and lower bounds.

Cells start in the order of the plan, each as soon as its pre-training is done and a place is free, which is
what `voidrl.experiments.run` does. Times are estimates from measured rates, without evaluations, without
waiting in a queue, and without the start of a process.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from voidrl.config import require
from voidrl.errors import ConfigError
from voidrl.experiments.estimate import Estimate, Rate
from voidrl.experiments.plan import Plan
from voidrl.system.units import human_seconds, plural

SHARING_GAIN = 1.2
"""Steps a second of several runs that share a GPU, in sum, relative to one run: two `urlb-states` at once
behind CUDA's multi-process service, benchmarks/h200-2026-11-15.md."""

CLOSE = 1.01  # a makespan that is longer than a bound by less is as long as it


@dataclass(frozen=True)
class Machines:
    """The machines for cells: equal nodes with equal devices, each with places for several cells."""

    nodes: int = 1
    gpus_per_node: int = 1
    jobs_per_gpu: int = 1
    unit: str = "GPU"
    """Name of a device: `place` for a run with dedicated CPU cores."""

    def __post_init__(self) -> None:
        for option, value in (
            ("--nodes", self.nodes),
            ("--gpus-per-node", self.gpus_per_node),
            ("--jobs", self.jobs_per_gpu),
        ):
            require(isinstance(value, int) and value >= 1, option, value, "a whole number above 0")

    @property
    def has_gpus(self) -> bool:
        """Whether runs are on GPUs, rather than on CPU cores."""
        return self.unit == "GPU"

    @property
    def gpus(self) -> int:
        """All devices."""
        return self.nodes * self.gpus_per_node

    @property
    def places(self) -> int:
        """Number of concurrent cells."""
        return self.gpus * self.jobs_per_gpu

    def __str__(self) -> str:
        shared = f", {self.jobs_per_gpu} runs on each" if self.jobs_per_gpu > 1 else ""
        return f"{plural(self.nodes, 'node')} × {plural(self.gpus_per_node, self.unit)}{shared}"


class TimedCell(NamedTuple):
    """A cell as the simulator sees it."""

    name: str
    seconds: float
    source: str | None = None
    """The task that it waits for."""


class Slot(NamedTuple):
    """When and where a task runs."""

    task: TimedCell
    place: int
    start: float
    end: float


@dataclass(frozen=True)
class Schedule:
    """A complete schedule, in the order in which tasks start."""

    slots: tuple[Slot, ...]
    places: int

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return max((slot.end for slot in self.slots), default=0.0)

    @property
    def work(self) -> float:
        """Seconds of all tasks together."""
        return sum(slot.task.seconds for slot in self.slots)

    @property
    def utilization(self) -> float:
        """Fraction of the places' time that is used."""
        return self.work / (self.places * self.makespan) if self.makespan else 1.0

    @property
    def work_bound(self) -> float:
        """Lower bound on the makespan: all work, spread evenly."""
        return self.work / self.places

    @property
    def longest_chain(self) -> list[TimedCell]:
        """Tasks that must follow each other and take longest together: no schedule is shorter."""
        tasks = {slot.task.name: slot.task for slot in self.slots}
        best: list[TimedCell] = []
        for task in tasks.values():
            chain = [task]
            while (source := chain[0].source) is not None and source in tasks:
                chain.insert(0, tasks[source])
            if not best or _seconds(chain) > _seconds(best):
                best = chain
        return best

    @property
    def chain_bound(self) -> float:
        """Length of the longest chain."""
        return _seconds(self.longest_chain)

    @property
    def critical_path(self) -> list[Slot]:
        """From time 0 to the end without a gap: each waited for the one before, or for its place."""
        path = [max(self.slots, key=lambda slot: slot.end)] if self.slots else []
        by_name = {slot.task.name: slot for slot in self.slots}
        on_place: dict[tuple[int, float], Slot] = {
            (slot.place, slot.end): slot for slot in self.slots if slot.task.seconds > 0
        }
        while path and path[0].start > 0:
            first = path[0]
            source = by_name.get(first.task.source or "")
            if source is not None and source.end == first.start:
                path.insert(0, source)
            else:
                path.insert(0, on_place[first.place, first.start])
        return path


def machines_for(
    on: str,
    options: Any,
    *,
    nodes: int | None,
    gpus_per_node: int | None,
    jobs: int | None,
    device: str,
    dry_run: bool,
) -> Machines | None:
    """The machines in the request of a dry run; None without any.

    Args:
        on: The executor.
        options: Executor options: local ones may name devices, others a fraction of a GPU for each run.
        nodes: `--nodes`.
        gpus_per_node: `--gpus-per-node`, by default 1.
        jobs: Runs on each GPU, where the command line says it.
        device: Device of the runs. On CPUs, a node has one place per concurrent run.
        dry_run: Whether nothing is started.
    """
    given = [
        f"{option} {value}"
        for option, value in (("--nodes", nodes), ("--gpus-per-node", gpus_per_node))
        if value is not None
    ]
    if given and not dry_run:
        raise ConfigError(
            f"{given[0]} cannot be used without --dry-run: it is for schedules on paper, and a cluster knows "
            f"its own nodes"
        )
    if gpus_per_node is not None and nodes is None:
        raise ConfigError(f"--gpus-per-node {gpus_per_node} cannot be used without --nodes: add --nodes 1")
    devices = getattr(options, "devices", None)
    if on == "local":
        if nodes is not None:
            raise ConfigError(
                f"--nodes {nodes} cannot be used with --on local, which is this machine: use --devices, or "
                f"--on ray or --on slurm"
            )
        if not dry_run or not devices:
            return None
        names = devices.split(",") if isinstance(devices, str) else [*devices]
        return _machines(1, len(names), jobs, on_cpu=names == ["cpu"])
    if nodes is None:
        return None
    fraction = getattr(options, "gpus_per_cell", None)
    if jobs is None and fraction and 0 < fraction < 1:
        jobs = int(1 / fraction)
    gpus = 1 if gpus_per_node is None else gpus_per_node
    return _machines(nodes, gpus, jobs, on_cpu=device == "cpu")


def _machines(nodes: int, devices: int, jobs: int | None, *, on_cpu: bool) -> Machines:
    made = Machines(nodes, devices, 1 if jobs is None else jobs, "place" if on_cpu else "GPU")
    if not on_cpu:
        return made
    return replace(made, gpus_per_node=devices * made.jobs_per_gpu, jobs_per_gpu=1)  # they share no device


def simulate(tasks: Sequence[TimedCell], places: int) -> Schedule:
    """Start tasks in their order, as soon as their dependency has ended and a place is free.

    A source that is not among the tasks is taken to be done.
    """
    names = {task.name for task in tasks}
    waiting: dict[str, list[int]] = {}
    ready: list[int] = []
    for index, task in enumerate(tasks):
        if task.source is not None and task.source in names:
            waiting.setdefault(task.source, []).append(index)
        else:
            ready.append(index)
    heapq.heapify(ready)
    free = [*range(places)]
    running: list[tuple[float, int, int]] = []  # (end, place, index)
    slots: list[Slot] = []
    now = 0.0
    while ready or running:
        while ready and free:
            index, place = heapq.heappop(ready), heapq.heappop(free)
            end = now + tasks[index].seconds
            slots.append(Slot(tasks[index], place, now, end))
            heapq.heappush(running, (end, place, index))
        now = running[0][0]
        while running and running[0][0] == now:
            _, place, index = heapq.heappop(running)
            heapq.heappush(free, place)
            for each in waiting.pop(tasks[index].name, []):
                heapq.heappush(ready, each)
    assert not waiting, "tasks wait for each other"
    return Schedule(tuple(slots), places)


def slowdown(rate: Rate | None, jobs_per_gpu: int) -> float:
    """Factor by which a run that shares its GPU takes longer than its rate says.

    A run measured by itself shares 1.2 times its rate with the others. One measured alongside others is not
    assumed to be faster with fewer of them.
    """
    if rate is None or jobs_per_gpu <= rate.runs_per_gpu:
        return 1.0
    if rate.runs_per_gpu == 1:
        return jobs_per_gpu / SHARING_GAIN
    return jobs_per_gpu / rate.runs_per_gpu


def plan_schedule(plan: Plan, estimates: Mapping[str, Estimate], machines: Machines) -> Schedule:
    """Schedule the missing cells of a plan; cells whose time is unknown take none."""
    tasks = []
    for cell in plan.cells:
        needed = estimates[cell.folder]
        if needed.seconds == 0:
            continue  # done, or lacks only its evaluation
        seconds = (needed.seconds or 0.0) * slowdown(needed.rate, machines.jobs_per_gpu)
        tasks.append(TimedCell(cell.folder, seconds, cell.source))
    return simulate(tasks, machines.places)


def describe(schedule: Schedule, machines: Machines, where: str) -> list[str]:
    """Lines for `--dry-run`."""
    if not schedule.work:
        return []
    gpu_hours = schedule.work / machines.jobs_per_gpu / 3600
    unit = machines.unit
    all_units = plural(machines.gpus, unit)
    chain = " → ".join(task.name for task in schedule.longest_chain)
    lines = [
        f"schedule: {machines} (--on {where}), simulated",
        f"makespan: {human_seconds(schedule.makespan)}",
        f"{unit}-hours: {_number(gpu_hours)} ({_number(gpu_hours / 24)} {unit}-days)",
        f"utilization: {100 * schedule.utilization:.1f} % of {all_units}",
        f"not shorter than: {human_seconds(schedule.work_bound)} (all work on {all_units}), "
        f"{human_seconds(schedule.chain_bound)} (longest chain: {chain})",
    ]
    unknown = sum(not slot.task.seconds for slot in schedule.slots)
    lines += [f"left out: {unknown} runs, whose time is unknown"] if unknown else []
    return [*lines, f"critical path: {_path(schedule)}", f"bound by: {_bound(schedule, machines)}"]


def _path(schedule: Schedule) -> str:
    """A summary of the path, which may have a thousand tasks: the most time first."""
    path = [slot.task for slot in schedule.critical_path if slot.task.seconds]
    if len(path) <= 3:
        return " → ".join(f"{task.name} ({human_seconds(task.seconds)})" for task in path)
    groups: dict[str, list[TimedCell]] = {}
    for task in path:
        groups.setdefault(human_seconds(task.seconds), []).append(task)
    largest = sorted(groups.items(), key=lambda item: -_seconds(item[1]))
    words = [f"{len(tasks)} × {length} (such as {tasks[0].name})" for length, tasks in largest[:2]]
    others = sum(len(tasks) for _, tasks in largest[2:])
    words += [f"{others} more of {human_seconds(sum(_seconds(t) for _, t in largest[2:]))}"] if others else []
    return f"{len(path)} runs, each of which waits for the one before: {', '.join(words)}"


def _bound(schedule: Schedule, machines: Machines) -> str:
    units = f"{machines.unit}s"
    if schedule.makespan <= CLOSE * schedule.chain_bound:
        return f"the longest chain; more {units} do not help"
    if schedule.makespan < CLOSE * schedule.work_bound:
        return f"the number of {units}"
    if schedule.chain_bound >= schedule.work_bound:
        most = human_seconds(schedule.makespan - schedule.chain_bound)
        return f"the longest chain, and runs before it; more {units} make it at most {most} shorter"
    idle = (1 - schedule.utilization) * 100
    return f"the number of {units}; whole runs do not fill the last round ({idle:.0f} % idle)"


def _seconds(chain: Sequence[TimedCell]) -> float:
    return sum(task.seconds for task in chain)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
