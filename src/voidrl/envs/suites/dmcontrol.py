"""DMControl's domains and tasks by name, with their cameras and action repeats. Imports no dm_control."""

from __future__ import annotations

from typing import NamedTuple

from voidrl.errors import ConfigError, UnknownNameError

PREFIX = "dmc/"
"""Prefix of DMControl's environment ids."""

SUITE: dict[str, tuple[str, ...]] = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
"""The tasks of dm_control's suite."""

SPARSE: dict[str, tuple[str, ...]] = {
    "cheetah": ("jump_sparse", "reach_sparse"),
    "hopper": ("jump_sparse", "reach_sparse"),
    "walker": ("jump_sparse", "reach_sparse", "turnover_sparse"),
}
"""The APT paper's sparse tasks: reward 1 at the goal, where the episode ends, and 0 before."""

URLB: dict[str, tuple[str, ...]] = {
    "walker": ("stand", "walk", "run", "flip"),
    "quadruped": ("stand", "walk", "run", "jump"),
    "jaco": ("reach_top_left", "reach_top_right", "reach_bottom_left", "reach_bottom_right"),
}
"""The twelve tasks of URLB (Laskin et al. 2021)."""

TASKS: dict[str, tuple[str, ...]] = {
    domain: tuple(dict.fromkeys(task for group in (SUITE, URLB, SPARSE) for task in group.get(domain, ())))
    for domain in sorted({*SUITE, *SPARSE, *URLB})
}
"""All tasks of each domain; a domain without a task starts its episodes like its first task."""

# Tasks whose observations differ from their domain's: an agent pre-trained on the domain does not fit them.
OTHER_OBSERVATIONS = {
    "cartpole_two_poles", "cartpole_three_poles", "dog_fetch", "humanoid_run_pure_state", "lqr_lqr_6_2",
    "quadruped_escape", "quadruped_fetch", "stacker_stack_4", "swimmer_swimmer15",
}  # fmt: skip

# Tasks that upload a terrain to the GPU, even for agents that observe states.
NEED_GL = {"quadruped_escape"}

CAMERAS: dict[str, int | str] = {"quadruped": 2, "jaco": "front_close"}  # URLB's; 0 for all others
REPEATS = {"cheetah": 4}  # the paper's for pixels; all others:
PIXELS_REPEAT = 2
STATES_REPEAT = 1  # URLB's


class DMCTask(NamedTuple):
    """A task of a domain, or only the domain."""

    domain: str
    task: str | None
    """None for a domain without a task, which has no reward."""

    @property
    def name(self) -> str:
        """The name in the environment id."""
        return self.domain if self.task is None else f"{self.domain}_{self.task}"


NAMES = {task.name: task for d in TASKS for task in (DMCTask(d, None), *(DMCTask(d, t) for t in TASKS[d]))}


def find_dmc_task(env: str) -> DMCTask | None:
    """The domain and task of `dmc/…`, in any spelling; None for other environments."""
    if not env.startswith(PREFIX):
        return None
    name, query, _ = env.removeprefix(PREFIX).partition("?")
    if query:
        raise ConfigError(
            f"environment {env!r} cannot be made: options belong in the config and not in the id, such as "
            f"env.dmc.action_repeat = 2"
        )
    spelled = {known.lower(): task for known, task in NAMES.items()}
    found = spelled.get(name.lower().replace("-", "_"))
    if found is not None:
        return found
    domain = max((d for d in TASKS if name.lower().startswith(f"{d.lower()}_")), key=len, default=None)
    if domain is not None:  # the domain is known: list its tasks, even if no name is similar
        raise UnknownNameError(
            f"task of domain {domain!r}:",
            name[len(domain) + 1 :],
            TASKS[domain],
            f"Write {PREFIX}{domain}_<task>.",
        )
    raise UnknownNameError("DMControl environment", name, NAMES, "See `voidrl list tasks`.")


def require_task(env: str, purpose: str) -> None:
    """Refuse a domain without a task where a reward is needed."""
    found = find_dmc_task(env)
    if found is not None and found.task is None:
        tasks = ", ".join(f"{PREFIX}{found.domain}_{task}" for task in TASKS[found.domain])
        raise ConfigError(f"environment {env!r} is a domain without a reward and {purpose}: expected {tasks}")
