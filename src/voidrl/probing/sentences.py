"""A probe as text: a table of variables, and a line for each measure. Imports no torch.

Both take the JSON of a probe, so that the terminal and reports of stored runs agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

UNKNOWN = "–"
SPACES = {
    "z": "z",
    "convolutions": "convolutions",
    "learner": "learner",
    "pixels": "pixels",
    "observation": "observation",
    "random": "random f",
}
"""Names of feature spaces in tables."""
UNTRAINED = {"pixels": "pixels (21×21)", "observation": "observation", "random": "random f"}
MOST_NAMES = 6


class Line(NamedTuple):
    """One measure."""

    name: str
    value: str
    meaning: str


def number(value: float | None, digits: int = 2) -> str:
    """Two decimals; a dash for an undefined value."""
    return UNKNOWN if value is None else f"{value + 0.0:.{digits}f}"


def heading(saved: Mapping[str, Any]) -> str:
    """Heading: the probed agent, its environment and the play."""
    agent = saved["agent"]
    who = f"{agent['method']} on {agent['representation']}"
    if agent["phase"] == "train":
        who = f"{agent['learner']} from scratch on {agent['representation']}"
    return f"{who} after {agent['steps']} steps in {agent['env']}: {play(saved)}"


def play(saved: Mapping[str, Any]) -> str:
    """The play on which it was measured."""
    settings = saved["settings"]
    elsewhere = settings.get("env", saved["agent"]["env"])
    where = f" in {elsewhere}" if elsewhere != saved["agent"]["env"] else ""
    return f"{saved['steps']} steps of {settings.get('policy', 'given')} play{where}, {saved['split']}"


def variable_columns(saved: Mapping[str, Any]) -> list[str]:
    """The columns of `variable_rows`."""
    return ["variable", "measure", *(SPACES.get(name, name) for name in saved["spaces"])]


def variable_rows(saved: Mapping[str, Any]) -> list[list[str]]:
    """A row for each variable, controllable ones first and marked by a star, and the means at the end."""
    spaces = [*saved["spaces"]]
    variables = sorted(saved["variables"], key=lambda each: not each["controllable"])
    rows = []
    for each in variables:
        name = f"{each['name']} *" if each["controllable"] else each["name"]
        rows.append([name, each["measure"], *(number(each["scores"].get(space)) for space in spaces)])
    own = sum(each["controllable"] for each in variables)
    for title, key, count in (
        ("mean of *", "controllable", own),
        ("mean of all", "all", len(variables)),
    ):
        if count > 1 and not (key == "controllable" and own == len(variables)):
            rows.append([title, "", *(number(saved["means"][key].get(space)) for space in spaces)])
    return rows


def variable_notes(saved: Mapping[str, Any]) -> list[str]:
    """Notes below the table of variables."""
    if not saved["variables"] and not saved["constant"]:
        return [
            "The environment does not report its true state, so only rewards are measured: return numbers by "
            "name as info['variables'] from its reset and step."
        ]
    notes = []
    if saved["variables"]:
        text = "How well a linear map of the features predicts each variable on held-out steps: 1 perfectly, "
        text += "0 not at all. * the agent controls it."
        untrained = [UNTRAINED[name] for name in saved["spaces"] if name in UNTRAINED]
        if untrained:
            were = "were" if len(untrained) > 1 else "was"
            text += f" {_names(untrained)} {were} never trained: what lies below was lost."
        notes.append(text)
    if any(each["measure"] == "F1" for each in saved["variables"]):
        notes.append(
            "F1 of a discrete variable is about 1 / (number of its values) for features that know nothing."
        )
    if saved["constant"]:
        notes.append(f"Left out, since they did not change, or too seldom: {_names(saved['constant'])}.")
    return notes


def lines(saved: Mapping[str, Any]) -> list[Line]:
    """A line for each measure of the task's reward and of the intrinsic one."""
    found = [_task_line(saved)]
    reward = saved["reward"]
    if reward is None:
        return [*found, Line("intrinsic reward", UNKNOWN, f"Not measured: {saved['reward_note']}.")]
    own, everything = reward["controllable"], reward["everything"]
    if own is None:
        found.append(Line("rarity, controlled", UNKNOWN, "No variable is known to be controllable."))
    else:
        what = _names(own["variables"])
        values = "values of " + what
        found += [
            Line(
                "rarity, controlled",
                number(own["correlation"]),
                f"Rank correlation of the reward with how rare the {values} are: 1 pays for rare ones only, "
                f"0 ignores what the agent controls.",
            ),
            Line(
                "averaged",
                number(own["mean_correlation"]),
                f"The same for the mean reward at the same {values}, since a learner averages the rest away.",
            ),
            Line(
                "rarest − commonest",
                number(own["effect"]),
                "Mean reward in the rarest tenth of steps minus that in the commonest, in standard "
                "deviations of the reward.",
            ),
            Line(
                "controlled share",
                number(own["share"]),
                f"Share of the reward's variance that the {values} explain: what the agent can influence.",
            ),
        ]
    if everything is not None and (own is None or everything["variables"] != own["variables"]):
        found.append(
            Line(
                "rarity, all",
                number(everything["correlation"]),
                f"Rank correlation of the reward with the rarity of all {len(everything['variables'])} "
                f"variables, whoever controls them.",
            )
        )
    survival = (
        "Share of the variance of returns that staying alive explains: near 1, the reward says “do not die”."
    )
    if reward["survival_share"] is None:
        survival = (
            "Share of the variance of returns that staying alive explains: not defined, as no episode "
            "terminated here, or all returns are equal."
        )
    noise, size = number(reward["noise"]), reward["batch_size"]
    meaning = f"Deviation of a state's reward between batches of {size}, over the deviation between states: "
    if reward["noise"] is not None:
        meaning += "0 is no noise, above 1 is mostly noise."
    elif saved["steps"] < 2 * size:
        meaning += f"not measured, as that takes {2 * size} steps or more."
    else:
        noise, meaning = "∞", f"{meaning}states do not differ by more than batches do."
    return [
        *found,
        Line("survival share", number(reward["survival_share"]), survival),
        Line("noise", noise, meaning),
    ]


def _task_line(saved: Mapping[str, Any]) -> Line:
    task = saved["task_reward"]
    if task is None:
        why = "Not measured: the sign of the task's reward is always the same in this play, or nearly so."
        return Line("task reward F1", UNKNOWN, why)
    scores = [f"{SPACES.get(name, name)} {number(value)}" for name, value in task["scores"].items()]
    return Line(
        "task reward F1",
        number(task["scores"].get("z")),
        f"Predicting the sign of the task's rarer rewards ({task['rate']:.1%} of steps): "
        f"{', '.join(scores)}; without features {number(task['chance'])}.",
    )


def _names(names: list[str] | tuple[str, ...]) -> str:
    rest = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    shown = [*names[:MOST_NAMES], *rest]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
