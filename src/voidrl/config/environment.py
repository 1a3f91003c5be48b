"""The configs of environments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from voidrl.config.checks import MAX_ENVS, MAX_FRAMES, require, require_positive

Count = int  # which the command line also reads as 1M, 100k, 1e6 and 1_000_000


@dataclass(frozen=True)
class AtariConfig:
    """The rules of the environments `atari/…`; no other environment has these options.

    A query in the id says the same, and wins: `atari/pong?sticky=true`. Evaluations play whole games for the
    raw score, whatever `life_loss` and `clip_rewards` are.
    """

    sticky: float = 0.0
    """Probability that the emulator repeats its last action in a frame; `?sticky=true` is 0.25."""
    life_loss: Literal["always", "task", "never"] = "always"
    """When a lost life is terminal in training: `always` (the paper); `task`, only while a task's reward is
    learned, so that a policy pre-trained for novelty is not trained to survive; or `never`. In an id true is
    `always`, false `never`."""
    full_actions: bool = False
    """All 18 actions instead of the game's minimal set."""
    noop_max: int = 30
    """Most frames without an action at the start of a game; the number is drawn."""
    max_frames: Count = 108_000
    """Frames after which a game is truncated."""
    clip_rewards: bool = True
    """Clip rewards to [−1, 1] in training."""

    def __post_init__(self) -> None:
        require(0 <= self.sticky < 1, "sticky", self.sticky, "a probability below 1")
        require(0 <= self.noop_max < MAX_FRAMES, "noop_max", self.noop_max, "a number of frames, 0 or more")
        few = 0 < self.max_frames < MAX_FRAMES
        require(few, "max_frames", self.max_frames, "a number of frames above 0")


@dataclass(frozen=True)
class DMControlConfig:
    """Observations and simulation of `dmc/…`; no other environment has these options."""

    observation: Literal["states", "pixels"] = "states"
    """The task's own observations as one vector, or images."""
    action_repeat: int = 0
    """Control steps per agent step, in which the action is held. 0 is the domain's default: 1 for states; for
    pixels the paper's, 4 for the cheetah and 2 for all others."""
    image_size: int = 84
    """Height and width of images in pixels."""
    camera: int | str = -1
    """Number or name of the camera; −1 is the one URLB uses: 2 for the quadruped, `front_close` for jaco,
    0 for all others."""
    render_quality: Literal["default", "medium", "fast"] = "default"
    """`default`, as dm_control renders; `medium`, with coarser shadows and curves: colors differ by about
    0.3 of 255, at a quarter of the cost on a CPU; `fast`, without shadows and multisampling."""
    renderer: Literal["auto", "gpu", "cpu"] = "auto"
    """Where images are rendered. `auto` takes CPU cores if networks learn on the GPU and there are enough
    cores for this quality, else the GPU if there is one, and says so."""
    processes: int = 0
    """Simulator processes, unless `env.backend` is `sync`; 0 is one per environment, up to the number of CPU
    cores."""

    def __post_init__(self) -> None:
        require(0 < self.image_size <= 1024, "image_size", self.image_size, "1 to 1024 pixels")
        for name in ("action_repeat", "processes"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 (chosen for you) or more")


@dataclass(frozen=True)
class EnvConfig:
    """The environment and the number of copies."""

    id: str = ""
    """`atari/<game>`, `dmc/<domain>_<task>`, a Gymnasium id or `module:factory`; options as a query:
    `atari/pong?sticky=true`."""
    num_envs: int = 1
    """Environments stepped in parallel."""
    backend: Literal["auto", "native", "sync", "async", "tensor"] = "auto"
    """How they are stepped: natively vectorized, in this process, in worker processes, or as tensors on the
    run's device, where observations stay. `auto` takes the native version where the environment has one; else
    `sync`, on DMControl `async`."""
    frame_stack: int = 1
    """Consecutive frames that make one observation; stacked by the replay, not by the environment."""
    count_states: bool = False
    """Measure coverage. On Atari the distinct states of the game's memory, for which worker processes emulate
    every step a second time; on DMControl bins of (height, angle, velocity) and the entropy of the physics
    states."""
    counted_envs: int = 0
    """Number of environments in which states are counted, fewer being cheaper; 0 for all of them."""
    timeout_s: float = 300.0
    """Seconds after which a worker process that does not answer counts as hung, which ends the run."""
    check_bounds: bool = True
    """Refuse observations outside the bounds of their space."""
    keys: tuple[str, ...] = ()
    """Entries of a Dict observation that the agent sees, in this order, such as `image` or `agent/position`.
    (): all of them."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around each environment, the innermost first: `module:Wrapper` or
    `module:Wrapper?option=value`. A native version is then not used."""
    action_masks: Literal["auto", "none", "info", "method", "key"] = "auto"
    """Where the environment says which discrete actions are allowed: in its `info["action_mask"]`, by its
    method `action_masks()`, or under the key `action_mask` of its observations. `auto` looks for them when
    the environment is probed."""
    atari: AtariConfig = field(default_factory=AtariConfig)
    """Atari."""
    dmc: DMControlConfig = field(default_factory=DMControlConfig)
    """DMControl."""

    def __post_init__(self) -> None:
        require(0 < self.num_envs <= MAX_ENVS, "num_envs", self.num_envs, f"1 to {MAX_ENVS}")
        require(0 < self.frame_stack <= 1024, "frame_stack", self.frame_stack, "1 to 1024 frames")
        require_positive(self, "timeout_s")
        require(self.counted_envs >= 0, "counted_envs", self.counted_envs, "0 (all) or a number of them")
        for wrapper in self.wrappers:
            named = ":" in wrapper.partition("?")[0]
            require(named, "wrappers", wrapper, "'module:Wrapper', such as gymnasium.wrappers:TimeLimit")
