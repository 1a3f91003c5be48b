"""The configs of environments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from voidrl.config.checks import Checked, Limit, Positive, between

MAX_FRAMES = 2**31 - 2  # of a game of Atari, which ALE counts in 32 bits
WRAPPER = "'module:Wrapper', such as gymnasium.wrappers:TimeLimit"
Wrapper = Annotated[str, Limit(lambda path: ":" in path.partition("?")[0], WRAPPER)]


@dataclass(frozen=True)
class AtariConfig(Checked):
    """The rules of the environments `atari/…`; no other environment has these options.

    A query in the id sets the same fields, and wins: `atari/pong?sticky=0.25`. Evaluations play whole games
    for the raw score, whatever `life_loss` and `clip_rewards` are.
    """

    sticky: Annotated[float, Limit(lambda value: 0 <= value < 1, "a probability below 1")] = 0.0
    """Probability that the emulator repeats its last action in a frame."""
    life_loss: Literal["always", "task", "never"] = "always"
    """Whether a lost life is terminal in training: `always` (the paper); `task`, only while a task's reward
    is learned, so that a policy pre-trained for novelty is not trained to survive; or `never`."""
    full_actions: bool = False
    """All 18 actions instead of the game's minimal set."""
    noop_max: Annotated[int, between(0, MAX_FRAMES, "frames")] = 30
    """Most frames without an action at the start of a game; the number is drawn."""
    max_frames: Annotated[int, between(1, MAX_FRAMES, "frames")] = 108_000
    """Frames after which a game is truncated."""
    clip_rewards: bool = True
    """Clip rewards to [−1, 1] in training."""


@dataclass(frozen=True)
class DMControlConfig(Checked):
    """Observations and simulation of `dmc/…`; no other environment has these options."""

    observation: Literal["states", "pixels"] = "states"
    """The task's own observations as one vector, or images."""
    action_repeat: Annotated[int, between(0, 1000)] = 0
    """Control steps per agent step, in which the action is held. 0 is the domain's default: 1 for states; for
    pixels the paper's, 4 for the cheetah and 2 for all others."""
    image_size: Annotated[int, between(1, 1024, "pixels")] = 84
    """Height and width of images in pixels. The camera is URLB's: 2 for the quadruped, `front_close` for
    jaco, 0 for all others."""
    render_quality: Literal["default", "medium", "fast"] = "default"
    """`default`, as dm_control renders; `medium`, with coarser shadows and curves: colors differ by about 0.3
    of 255, at a quarter of the cost; `fast`, without shadows and multisampling."""


@dataclass(frozen=True)
class EnvConfig(Checked):
    """The environment and the number of copies."""

    id: str = ""
    """`atari/<game>`, `dmc/<domain>_<task>`, a Gymnasium id or `module:factory`; options as a query:
    `atari/pong?sticky=0.25`."""
    num_envs: Annotated[int, between(1, 8192)] = 1
    """Environments stepped in parallel."""
    backend: Literal["auto", "native", "sync", "async"] = "auto"
    """How environments are stepped: `native`, vectorized by their package; `sync`, in this process; `async`,
    in worker processes. `auto`: `native` where there is a native version, else `sync`, on DMControl
    `async`."""
    frame_stack: Annotated[int, between(1, 1024, "frames")] = 1
    """Consecutive frames that make one observation; stacked by the replay, not by the environment."""
    count_states: bool = False
    """Measure coverage: on Atari the distinct states of the game's memory, by a second emulation of every
    step; on DMControl bins of (height, angle, velocity)."""
    timeout_s: Positive = 300.0
    """Seconds without an answer after which a worker process counts as hung, which ends the run."""
    check_bounds: bool = True
    """Refuse observations outside the bounds of their space."""
    keys: tuple[str, ...] = ()
    """Entries of a Dict observation that the agent sees, in this order, such as `image` or `agent/position`.
    (): all of them."""
    wrappers: tuple[Wrapper, ...] = ()
    """Wrappers around each environment, the innermost first: `module:Wrapper?option=value`. They exclude a
    native version."""
    action_masks: Literal["auto", "none", "info", "method", "key"] = "auto"
    """Source of the masks of allowed discrete actions: the environment's `info["action_mask"]`, its method
    `action_masks()`, or the key `action_mask` of its observations. `auto` looks for them when the environment
    is probed."""
    atari: AtariConfig = field(default_factory=AtariConfig)
    """Atari."""
    dmc: DMControlConfig = field(default_factory=DMControlConfig)
    """DMControl."""
