"""DMControl's domains and tasks by name: what there is, and what belongs to which. Imports no dm_control."""

from __future__ import annotations

from typing import NamedTuple

from voidrl.envs.ids import DMC
from voidrl.errors import ConfigError, UnknownNameError

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
"""The tasks of the paper's own: 1 at the goal, where the episode ends, and 0 before."""

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
"""All tasks of each domain; the first one's starts are those of a domain without a task."""

# Tasks with other observations than their domain's: an agent that was pre-trained on that does not fit them.
OTHER_OBSERVATIONS = {
    "cartpole_two_poles", "cartpole_three_poles", "dog_fetch", "humanoid_run_pure_state", "lqr_lqr_6_2",
    "quadruped_escape", "quadruped_fetch", "stacker_stack_4", "swimmer_swimmer15",
}  # fmt: skip

# Tasks that draw a terrain into the memory of the GPU, whatever the agent sees.
NEED_GL = {"quadruped_escape"}

CAMERAS: dict[str, int | str] = {"quadruped": 2, "jaco": "front_close"}  # URLB's; 0 for all others
REPEATS = {"cheetah": 4}  # the paper's for pixels, and for all others …
PIXELS_REPEAT = 2
STATES_REPEAT = 1  # URLB's


class Place(NamedTuple):
    """What an id names."""

    domain: str
    task: str | None
    """None: the domain alone, without a reward."""

    @property
    def name(self) -> str:
        """As it stands in the id."""
        return self.domain if self.task is None else f"{self.domain}_{self.task}"


NAMES = {Place(domain, task).name: Place(domain, task) for domain in TASKS for task in (None, *TASKS[domain])}


def find_place(env: str) -> Place | None:
    """The domain and task that `dmc/…` names, in any spelling; None for other environments."""
    if not env.startswith(DMC):
        return None
    name, query, _ = env.removeprefix(DMC).partition("?")
    if query:
        raise ConfigError(
            f"environment {env!r} cannot be made: its options stand in the config and not in the id, such as "
            f"--env.dmc.action-repeat 2"
        )
    spelled = {known.lower(): place for known, place in NAMES.items()}
    found = spelled.get(name.lower().replace("-", "_"))
    if found is not None:
        return found
    domain = max((d for d in TASKS if name.lower().startswith(f"{d.lower()}_")), key=len, default=None)
    if domain is not None:  # the domain is known: say its tasks, however unlike their names are
        raise UnknownNameError(
            f"task of domain {domain!r}:",
            name[len(domain) + 1 :],
            TASKS[domain],
            f"Write {DMC}{domain}_<task>.",
        )
    raise UnknownNameError("DMControl environment", name, NAMES, "See `voidrl list tasks`.")


def require_task(env: str, purpose: str) -> None:
    """Refuse a domain where a task, and so a reward, is needed."""
    place = find_place(env)
    if place is not None and place.task is None:
        tasks = ", ".join(f"{DMC}{place.domain}_{task}" for task in TASKS[place.domain])
        raise ConfigError(f"environment {env!r} is a domain without a reward and {purpose}: expected {tasks}")
