"""The config of a run: `Config`, and the groups of fields that are not a piece's or the environment's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from voidrl.config.checks import (
    LEAST_PROBE_STEPS,
    MAX_CPU_THREADS,
    MAX_EVAL_EPISODES,
    MAX_PROBE_STEPS,
    MAX_SNAPSHOTS,
    require,
    require_positive,
    require_update_rate,
)
from voidrl.config.environment import Count, EnvConfig
from voidrl.config.pieces import LearnerConfig, MethodConfig, RepresentationConfig, Trainer


@dataclass(frozen=True)
class AugmentConfig:
    """Augmentation, drawn for every observation, the same for all its frames; pixels only.

    An image is cut to a random window of `inner_size`, padded by `shift_pixels` on each side by repeating its
    edges, and cropped at random, to `crop_size` or the size that it had.
    """

    shift_pixels: int | None = None
    """Padding on each side: the largest random shift, unless images are cropped. Edges are repeated. None
    goes by the images: a ninth of the shorter side, at most 4, and 0 for a side below 16 pixels, where a
    pixel is often a symbol and a shift another state."""
    intensity_scale: float = 0.0
    """Intensity jitter: images are multiplied by 1 + scale · clip(N(0, 1), −2, 2)."""
    crop_size: int = 0
    """Height and width of the images that networks read: random crops in losses, the center everywhere else
    (RAD: 84 of 100, with `shift_pixels` 0). The replay stores whole images. 0 does not crop."""
    inner_size: int = 0
    """Height and width of a random window outside of which its edges are repeated (CURL on Atari: 80); 0 for
    the whole image."""
    shift_probability: float = 1.0
    """Probability that an image is shifted or cropped at random, rather than in the middle (ATC: 0.1)."""
    learner: bool = True
    """Augment the learner's images too. False leaves augmentation to the representation (CURL on Atari)."""

    def __post_init__(self) -> None:
        shift = self.shift_pixels
        require(shift is None or shift >= 0, "shift_pixels", shift, "0 or more, or None")
        for name in ("intensity_scale", "crop_size", "inner_size"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        share = self.shift_probability
        require(0 <= share <= 1, "shift_probability", share, "a number in [0, 1]")


@dataclass(frozen=True)
class ReplayConfig:
    """The replay buffer."""

    capacity_steps: Count = 100_000
    """Environment steps kept, over all environments together; the last frame of an episode takes up one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` keeps the replay on the networks' device if it fits there. Otherwise its frames are kept in main
    memory, which is pinned so that the GPU reads it directly, and the run says so. `cpu` keeps them there
    always."""
    priority_exponent: float = 0.0
    """α of prioritized sampling (Schaul et al. 2016): transitions are drawn with a probability proportional
    to their last error to the power of α; 0 draws uniformly."""
    importance_start: float = 0.4
    """β of the importance weights (N P)^−β at the start; they are divided by the largest of the batch."""
    importance_end: float = 1.0
    """β at the end of the run, to which it rises linearly."""
    priority_losses: Literal["learner", "all"] = "learner"
    """Which errors make up a priority: the learner's, or `all`, the auxiliary loss of each transition
    included (CURL on Atari)."""
    data: str | None = None
    """A dataset that fills the replay before the first step: the id or the path of a Minari dataset, or an
    .npz file of `voidrl export`. None for an empty replay."""

    def __post_init__(self) -> None:
        require_positive(self, "capacity_steps")
        for name in ("priority_exponent", "importance_start", "importance_end"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "a number in [0, 1]")


@dataclass(frozen=True)
class ResetConfig:
    """Periodic resets, without which many updates per step overfit (SR-SPR, BBF)."""

    every_updates: Count = 0
    """Updates between two resets; 0 turns them off."""
    keep: float = 0.8
    """Share of the encoder's weights that a reset keeps, the rest being those of a new one: shrink and
    perturb (SR-SPR: 0.8, BBF: 0.5). Heads are reinitialized, and their optimizers' moments set to 0."""
    last_steps: Count = 20_000
    """Steps at the end of the run without a reset."""

    def __post_init__(self) -> None:
        for name in ("every_updates", "last_steps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        require(0 <= self.keep <= 1, "keep", self.keep, "a number in [0, 1]")


@dataclass(frozen=True)
class FinetuneConfig:
    """What is kept of the pre-trained agent, and how it is adapted."""

    steps: Count | None = None
    """Environment steps, unless the command says otherwise; None takes as many as in pre-training."""
    updates_per_step: float | None = None
    """Gradient steps per environment step; None takes those of pre-training."""
    heads: Literal["auto", "pretrained", "actor", "first_layer", "random"] = "auto"
    """Which heads are kept. `auto` decides at the end of the warm-up, from the task's returns in it: where
    the pre-trained values correlate with them (the *alignment*), values are moved to the task's scale and
    everything is kept; otherwise the critic is reinitialized and the policy kept, as the actor, or as the
    explorer of a learner without one. `pretrained` keeps all heads, `random` none. `actor` (URLB) keeps the
    policy and the trunks of both, and reinitializes the critic behind its trunk, or all of it without a
    trunk. `first_layer` (SGI) keeps the layer of each head that reads the features."""
    frozen_column: Literal["none", "learner", "representation"] = "none"
    """A pre-trained encoder that stays as it is, next to a new one that learns; heads read the features of
    both (progressive networks). `learner`: the encoder of the pre-trained policy; `representation`: f. It
    takes new heads: a command that names it sets `heads` to `random` and, unless it says otherwise,
    `encoder_learning_rate`, which is then the new encoder's, to None."""
    learning_rate: float | None = None
    """The learner's learning rate during fine-tuning and, under a protocol, when training from scratch; None
    takes `learner.learning_rate`."""
    encoder_learning_rate: float | None = None
    """Learning rate of the learner's encoder while fine-tuning; None takes the learner's, 0 freezes it."""
    first_layer_learning_rate: float | None = None
    """Learning rate of the first layer of the heads while fine-tuning; None takes the learner's, 0 freezes
    it."""
    warmup_steps: Count = 1000
    """Steps before the first update."""
    warmup_actions: Literal["policy", "random"] = "policy"
    """Who acts during the warm-up: the pre-trained policy, whatever becomes of the heads, or uniform random
    actions (the paper on DMControl). Skill methods try their skills in this time, which takes the policy."""
    explorer: float = 0.0
    """Probability per step, after the warm-up, that the frozen pre-trained policy takes over in an
    environment for some steps (CPT: behavior transfers better than weights). It falls linearly to 0. The new
    policy alone is evaluated."""
    explorer_steps: float = 50.0
    """Mean number of steps for which the pre-trained policy then acts; the numbers are geometric."""
    explorer_decay_steps: Count | None = None
    """Steps of the run after which `explorer` is 0; None for the whole run."""
    noise: Literal["auto", "end", "restart"] = "auto"
    """Exploration noise (ε, or the standard deviation): stay at the `end` of its schedule, or `restart` it;
    `auto` restarts it for a policy that is new, which is that of a learner without an actor with new heads.
    The schedule of ε starts when the warm-up is over."""
    temperature: Literal["task", "pretrained"] = "task"
    """SAC's α: `task` restarts it at `learner.initial_temperature` times (1 − γ) times the range of the
    task's returns in the warm-up, so that the entropy bonus is small next to them; or keep it."""
    return_range: float = 1.0
    """Multiply rewards so that the returns of the warm-up differ by this much: learning rates, the entropy
    bonus and the initialization of a critic then suit the task whatever it pays. 0 leaves rewards as they
    are, and so do pre-trained heads."""
    critic_share: float = 0.1
    """Share of the updates in which a new critic learns to judge the kept actor, which waits; 0 trains both
    from the start."""
    wait_for_reward: bool = True
    """Adapt when rewards differ, not before: until then there is nothing to adapt to, and the agent keeps
    exploring. An actor, and skills, are not trained meanwhile."""
    detours: float = 0.05
    """Probability per step of a detour, on which one random action is held for about ten steps. It is
    constant until the agent is adapted and falls to 0 in the first half of the steps after that. 0 turns
    detours off."""

    def __post_init__(self) -> None:
        for name in ("encoder_learning_rate", "first_layer_learning_rate"):
            rate = getattr(self, name)
            require(rate is None or 0 <= rate < math.inf, name, rate, "None, 0 (frozen) or a learning rate")
        if self.frozen_column != "none":
            column = f"with frozen_column = {self.frozen_column!r}"
            new = f"'random' {column}, since no pre-trained head reads the features of two encoders"
            require(self.heads == "random", "heads", self.heads, new)
            rate = self.encoder_learning_rate
            trained = f"None or a number above 0 {column}, which leaves the new encoder to be trained"
            require(rate != 0, "encoder_learning_rate", rate, trained)
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or more")
        require(0 <= self.critic_share <= 1, "critic_share", self.critic_share, "a share from 0 to 1")
        require(0 <= self.detours <= 1, "detours", self.detours, "a probability in [0, 1]")
        span = self.return_range
        require(0 <= span < math.inf, "return_range", span, "a range above 0, or 0 to leave rewards alone")
        require(0 <= self.explorer <= 1, "explorer", self.explorer, "a probability in [0, 1]")
        mean = self.explorer_steps
        require(1 <= mean < math.inf, "explorer_steps", mean, "a mean number of steps, 1 or more")
        decay = self.explorer_decay_steps
        if decay is not None:
            require_positive(self, "explorer_decay_steps")
            expected = f"more than warmup_steps = {self.warmup_steps}, before which explorer does nothing"
            require(not self.explorer or decay > self.warmup_steps, "explorer_decay_steps", decay, expected)
        require(self.steps is None or self.steps > 0, "steps", self.steps, "None or a number above 0")
        if self.learning_rate is not None:
            require_positive(self, "learning_rate")
        if self.updates_per_step is not None:
            require_update_rate(self.updates_per_step)


@dataclass(frozen=True)
class BonusConfig:
    """An intrinsic reward next to the task's, in fine-tuning and when training from scratch.

    The learner's reward is reward_scale · r + β_t · r_int, where r_int is the reward of `method`; both are
    summed over the same n steps. `train --bonus METHOD` turns it on.
    """

    coefficient: float = 0.0
    """β₀, the weight of the intrinsic reward at the start of the run, in place of `intrinsic_scale`; 0 for
    none. Pre-training ignores it."""
    decay: Literal["none", "linear", "geometric"] = "none"
    """How β falls with the environment steps t of the run: not at all; `linear`, to 0 after `decay_steps`; or
    `geometric`, β₀ (1 − ρ)^t."""
    decay_steps: Count | None = None
    """Steps of the run after which a `linear` β is 0; None for the whole run."""
    decay_rate: float = 1e-5
    """ρ of a `geometric` β (RE3: 1e-5)."""

    def __post_init__(self) -> None:
        finite = 0 <= self.coefficient < math.inf
        require(finite, "coefficient", self.coefficient, "a finite number from 0 (no bonus) on")
        if self.decay_steps is not None:
            require_positive(self, "decay_steps")
        require(0 <= self.decay_rate < 1, "decay_rate", self.decay_rate, "a number in [0, 1)")


@dataclass(frozen=True)
class LogConfig:
    """Metrics, evaluations and checkpoints."""

    log_every_steps: Count = 1000
    """Steps between two rows of metrics, the only time that they are read from the device."""
    eval_every_steps: Count = 0
    """Steps between two evaluations; 0 for none. Fine-tuning also evaluates its first and its last agent."""
    eval_episodes: int = 10
    """Episodes of one evaluation, in separate environments with separate seeds. The evaluations at the start
    and end of fine-tuning have at most 10; 0 turns them off."""
    eval_epsilon: float = 0.0
    """Probability of a random action in evaluations; with 0, every episode of a deterministic environment is
    the same."""
    probe_every_steps: Count = 0
    """Steps between two probes of what representation and reward see of the true state; 0 turns them off."""
    probe_steps: Count = 5000
    """Steps of random play on which all probes of a run are made; it is collected once, in separate
    environments."""
    checkpoint_every_steps: Count = 50_000
    """Steps between two checkpoints. Environments are reset with a new seed at each, which makes resuming
    from it exact. One more is written where a run stops."""
    keep_last: int = 2
    """Checkpoints kept."""
    keep_replay: bool = True
    """Keep the replay, most of a checkpoint, in the one at the end. Without it a complete run can be
    fine-tuned, evaluated and shared, but not extended; with `keep_last` 1 no other checkpoint has it."""
    snapshot_steps: tuple[Count, ...] = ()
    """Steps of the run at which the agent alone is kept permanently under `snapshots/`: `100k,500k` on the
    command line. Several environments may step past one; folders are named by the agent's true steps."""
    tensorboard: bool = True
    """Write TensorBoard files as well as `metrics.jsonl`."""
    wandb_project: str | None = None
    """Also log to this Weights & Biases project (extra `wandb`)."""

    def __post_init__(self) -> None:
        require_positive(self, "log_every_steps", "checkpoint_every_steps", "keep_last")
        least = 1 if self.eval_every_steps else 0
        few = least <= self.eval_episodes <= MAX_EVAL_EPISODES
        require(few, "eval_episodes", self.eval_episodes, f"{least} to {MAX_EVAL_EPISODES}")
        for name in ("eval_every_steps", "probe_every_steps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        enough = LEAST_PROBE_STEPS <= self.probe_steps <= MAX_PROBE_STEPS
        expected = f"{LEAST_PROBE_STEPS} to {MAX_PROBE_STEPS}"
        require(enough, "probe_steps", self.probe_steps, expected)
        require(0 <= self.eval_epsilon <= 1, "eval_epsilon", self.eval_epsilon, "a probability in [0, 1]")
        count = len(self.snapshot_steps)
        require(
            count <= MAX_SNAPSHOTS, "snapshot_steps", self.snapshot_steps, f"at most {MAX_SNAPSHOTS} of them"
        )
        for step in self.snapshot_steps:
            require(step > 0, "snapshot_steps", step, "numbers of steps above 0")


@dataclass(frozen=True)
class Config:
    """One run: `pretrain` (the method's reward), `finetune` or `train` (the environment's, and a bonus)."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    phase: Literal["pretrain", "finetune", "train"] = "pretrain"
    """Set by the command."""
    steps: Count = 100_000
    """Environment steps of this run."""
    seed: int = 0
    """Seed of everything random in the run."""
    device: str = "auto"
    """`auto` (CUDA where there is one), `cpu`, `cuda` or `cuda:1`."""
    cpu_threads: int = 0
    """Threads of the networks on a CPU; 0 chooses by their size: one for small ones, several for large
    batches of convolutions, as far as cores are free. `OMP_NUM_THREADS` is obeyed."""
    engine: Literal["auto", "eager", "graph", "compile"] = "auto"
    """How updates run: `eager`, one kernel after the other; `graph`, captured as CUDA graphs, many updates
    per launch; `compile`, fused by torch.compile and then, on CUDA, captured: the fastest, after about a
    minute of compiling, some seconds once the same config has been compiled. `auto`: on CUDA `compile` from
    200k updates on, which pay for compiling, and `graph` below; else `eager`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of convolutions and matrix products; distances, losses, targets, normalizers and optimizers
    are always fp32. `auto`: `bf16` on CUDA devices that have it, else `fp32`."""
    warmup_steps: Count = 1000
    """Steps with uniform random actions before the first update."""
    updates_per_step: float = 2.0
    """Gradient steps per environment step (the paper: 2); below 1 for one update every few steps."""
    method: MethodConfig = field(default_factory=lambda: MethodConfig("apt"))
    """Intrinsic reward."""
    representation: RepresentationConfig = field(default_factory=lambda: RepresentationConfig("auto"))
    """Representation f."""
    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig("auto"))
    """RL algorithm."""
    reward_scale: float = 1.0
    """Multiplies the environment's reward in the learner. Pre-trained values are on the scale of intrinsic
    rewards, with most methods about 1 per step unless `intrinsic_normalization` or `intrinsic_scale` change
    it. Fine-tuning finds the task's scale by itself (`finetune.return_range`)."""
    intrinsic_scale: float | Literal["horizon"] | None = None
    """Multiplies the intrinsic reward in pre-training; `horizon` is 1 − γ, since a reward of 1 per step adds
    up to 1 / (1 − γ). None: 1, but `horizon` for learners whose values have bounds (`rainbow`)."""
    intrinsic_normalization: Literal["none", "scale", "standardize"] = "none"
    """What happens to the method's reward of each transition before it is multiplied by `intrinsic_scale` and
    summed over n steps: nothing; `scale`, divided by its running standard deviation; or `standardize`, which
    subtracts the running mean first. Values are then near 0, and staying alive is not rewarded."""
    intrinsic_momentum: float | None = 0.999
    """Factor by which the weight of past rewards in these running moments shrinks at each update, since the
    rewards of a method drift while it learns: 0.999 looks back about 1000 updates. None weighs all alike."""
    share_encoder: Literal["nothing", "stack", "all"] = "nothing"
    """What f and the learner's encoder have in common: `nothing` (the paper on Atari), the `stack` of
    convolutions with a trunk each, or `all`: the learner acts on f(s) (the paper on DMControl)."""
    encoder_trainers: tuple[Trainer, ...] = ()
    """Whose losses train the encoder f: any of `representation`, `method` and, where it is shared, `learner`;
    several are added up. (): the representation if it has a loss, together with the learner if it is
    auxiliary; without one, the learner that shares it."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    """Augmentation of pixels."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Replay buffer."""
    reset: ResetConfig = field(default_factory=ResetConfig)
    """Periodic resets."""
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    """Fine-tuning."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Intrinsic reward next to the task's."""
    log: LogConfig = field(default_factory=LogConfig)
    """Logging."""

    def __post_init__(self) -> None:
        expected = "a positive number of environment steps, such as 100k; only pre-training may have 0"
        untrained = self.steps == 0 and self.phase == "pretrain"
        require(self.steps > 0 or untrained, "steps", self.steps, expected)
        require_positive(self, "reward_scale")
        if self.intrinsic_scale not in (None, "horizon"):
            require_positive(self, "intrinsic_scale")
        momentum = self.intrinsic_momentum
        forgets = momentum is None or 0 <= momentum < 1
        require(forgets, "intrinsic_momentum", momentum, "None or a number in [0, 1)")
        require_update_rate(self.updates_per_step)
        few = 0 <= self.cpu_threads <= MAX_CPU_THREADS
        require(few, "cpu_threads", self.cpu_threads, f"0 (chosen for you) to {MAX_CPU_THREADS}")
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or more")
        require(0 <= self.seed < 2**31, "seed", self.seed, "a whole number in [0, 2³¹)")

    @property
    def planned_updates(self) -> int:
        """Updates on samples of the replay in the whole run; on-policy, those of f."""
        tuning = self.finetune if self.phase == "finetune" else None
        warmup_steps = self.warmup_steps if tuning is None else tuning.warmup_steps
        ratio = (tuning and tuning.updates_per_step) or self.updates_per_step
        return max(0, int((self.steps - warmup_steps) * Fraction(str(ratio))))

    @property
    def intrinsic_factor(self) -> float | None:
        """`intrinsic_scale` as a number; None leaves it to the learner."""
        if self.intrinsic_scale == "horizon":
            return 1 - self.learner.largest_discount
        return self.intrinsic_scale

    @property
    def has_bonus(self) -> bool:
        """Whether the method's reward is added to the task's."""
        return self.phase != "pretrain" and self.bonus.coefficient > 0

    @property
    def uses_method(self) -> bool:
        """Whether the method rewards and learns: in pre-training, and as a bonus."""
        return self.phase == "pretrain" or self.effective.has_bonus

    @property
    def learning_rate_field(self) -> str:
        """The field that sets the learner's learning rate in this phase."""
        return f"{'finetune' if self.phase == 'finetune' else 'learner'}.learning_rate"

    @property
    def effective_learning_rate(self) -> float:
        """The learner's learning rate in this phase."""
        tuned = self.finetune.learning_rate if self.phase == "finetune" else None
        return tuned or self.learner.learning_rate
