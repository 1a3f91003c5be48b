"""What each preset is for, and where its values come from. The values themselves are read from the code."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Source:
    """Prose about one preset."""

    text: str
    command: str
    base: str | None = None
    """The preset to compare it with; None compares it with the defaults."""
    pixels: bool = True
    """Whether it is for images; otherwise for vectors."""
    discrete: bool = False
    """Whether it is for discrete actions; otherwise for continuous ones."""
    notes: dict[str, str] = field(default_factory=dict)
    """The source of, or reason for, single fields."""


OFTEN = "long runs log and save less often"
TABLE = "the paper's Atari table"
DMC_TABLE = "the paper's DMControl table"
ENCODER_TABLE = "the paper's encoder table"
TEXT = "the paper's text"
URLB = "URLB's code"
SPELLED = "what `auto` selects, made explicit"

SOURCES = {
    "maze-demo": Source(
        text="Used by `voidrl demo`: small networks and batches, one update every four steps. The values "
        "were tuned on seeds 1 and 2 of the demo's maze ([limits](demo.md#what-it-does-not-show)).",
        command="voidrl pretrain 'voidrl/PixelMaze-v0?size=13&loops=0.1' --preset maze-demo --steps 16k",
        discrete=True,
        notes={
            "updates_per_step": "minutes on a CPU; the paper has 2",
            "method.mean_momentum": "the mean reward drifts as f learns, so old rewards are forgotten",
            "learner.n_step": "longer returns propagate reward through corridors",
            "learner.target_tau": "and so does a fast target network",
            "reward_scale": "pre-trained rewards are about 1 per step; a single 1 at the goal must stand out",
            "augment.shift_pixels": "1 pixel is a third of a cell",
            "log.eval_epsilon": "without noise, all episodes in a deterministic maze are identical",
        },
    ),
    "atari-paper": Source(
        text="The paper's hyperparameters, with [our choices](paper.md#where-the-paper-contradicts-itself) "
        "where its tables are incomplete or contradict its text. It is the default for `atari/…`. On one "
        "H200 its 250M steps would take 8 days.",
        command="voidrl pretrain atari/ms_pacman --preset atari-paper --engine compile",
        discrete=True,
        notes={
            "env.frame_stack": TABLE,
            "steps": TEXT,
            "warmup_steps": f"{TABLE}: min replay size for sampling",
            "representation.encoder.feature_dim": f"{ENCODER_TABLE}; the text has 15",
            "representation.encoder.hidden_dim": ENCODER_TABLE,
            "representation.encoder.spectral_norm_iterations": TEXT,
            "representation.warmup_updates": "ours: f "
            "[collapses](environments/atari.md#the-contrastive-loss-needs-a-warm-up) without it",
            "learner.batch_size": f"{TABLE}; the text has 512, used here for the contrastive loss only",
            "learner.n_step": TABLE,
            "learner.target_tau": f"{TABLE}: target network, update period 1",
            "encoder_owner": SPELLED,
            "augment.intensity_scale": f"{TABLE} names intensity jitter, without a scale",
            "replay.capacity_steps": "ours: unbounded in the table, 100K in the text",
            "finetune.steps": TABLE,
            "finetune.learning_rate": TABLE,
            "finetune.warmup_steps": "as in pre-training",
            "log.log_every_steps": OFTEN,
            "log.checkpoint_every_steps": OFTEN,
            "log.eval_epsilon": "ours: the paper gives none",
        },
    ),
    "atari-fast": Source(
        text="For hours on one GPU instead of days. Steps are cheap and updates are not, so it makes 32 "
        "times fewer updates, on larger batches. It has been run only to measure its speed. The "
        "[results](../results/atari/README.md) used half its updates and another `target_tau`.",
        command="voidrl pretrain atari/ms_pacman --preset atari-fast --engine compile",
        base="atari-paper",
        discrete=True,
        notes={
            "env.num_envs": "emulation in 16 threads",
            "updates_per_step": "keeps one H200 and 16 cores equally busy",
            "representation.batch_size": "half the samples for the contrastive loss",
            "learner.batch_size": "larger batches use the GPU better; also the pool of particles",
            "learner.n_step": "f of n + 1 states is computed for every transition",
            "learner.learning_rate": "larger batches",
            "learner.target_tau": "a target that lags about ten updates; 0.01 was "
            "[too slow to unlearn](../results/atari/README.md#fine-tuning)",
            "warmup_steps": "64 environments",
            "replay.capacity_steps": "2.8 GB on the GPU",
            "finetune.updates_per_step": "32 sampled transitions per step",
        },
    ),
    "atari-demo": Source(
        text="Shows how things work, not how well: narrow networks, small batches, and visited states are "
        "counted.",
        command="voidrl pretrain atari/ms_pacman --preset atari-demo",
        base="atari-fast",
        discrete=True,
        notes={"env.count_states": "emulates every step twice"},
    ),
    "dmc-paper": Source(
        text="The paper's hyperparameters for DMControl from pixels. The paper specifies neither the length "
        "of fine-tuning nor the encoder's hidden layer. We have not run it at full scale.",
        command="voidrl pretrain dmc/walker --preset dmc-paper --engine compile",
        notes={
            "env.frame_stack": DMC_TABLE,
            "env.dmc.observation": TEXT,
            "steps": f"{TEXT}: 5M, read as agent steps",
            "representation.encoder.stack": f"{DMC_TABLE}: strides 2, 2, 2, 1",
            "representation.encoder.hidden_dim": f"{ENCODER_TABLE}, which is Atari's",
            "representation.encoder.spectral_norm_iterations": TEXT,
            "learner.batch_size": DMC_TABLE,
            "share_encoder": f"{DMC_TABLE}: shared encoder",
            "encoder_owner": SPELLED,
            "finetune.steps": "ours: not specified in the paper",
            "finetune.warmup_actions": f"{DMC_TABLE}: 1000 random steps",
            "log.log_every_steps": OFTEN,
            "log.checkpoint_every_steps": OFTEN,
        },
    ),
    "dmc-fast": Source(
        text="The paper's networks for less than an hour on one GPU: more parallel simulations, cheaper "
        "images, an eighth of the updates, half the batch size.",
        command="voidrl pretrain dmc/walker --preset dmc-fast --engine compile",
        base="dmc-paper",
        notes={"env.dmc.render_quality": "no shadows, no multisampling: a quarter of the cost"},
    ),
    "urlb-states": Source(
        text="The protocol of [URLB](https://arxiv.org/abs/2110.15191) and its code's APT, from states. "
        "It is the default for `dmc/…`. [DMControl](environments/dmcontrol.md#presets) lists the differences "
        "from URLB's code.",
        command="voidrl pretrain dmc/walker --engine compile",
        pixels=False,
        notes={
            "env.num_envs": "ours: URLB has 1",
            "env.dmc.action_repeat": URLB,
            "steps": f"{URLB}: 2M frames",
            "updates_per_step": f"{URLB}: an update every second step",
            "method.k": URLB,
            "method.include_self": URLB,
            "method.particle": URLB,
            "method.normalize": URLB,
            "representation.name": URLB,
            "representation.batch_size": f"{URLB}: the learner's transitions",
            "learner.name": URLB,
            "learner.intrinsic_n_step": URLB,
            "learner.trunk_dim": URLB,
            "finetune.steps": f"{URLB}: 100K frames",
            "finetune.heads": URLB,
            "finetune.warmup_steps": URLB,
            "finetune.warmup_actions": URLB,
            "log.log_every_steps": OFTEN,
            "log.checkpoint_every_steps": OFTEN,
            "log.snapshot_steps": f"{URLB}: agents after 100K, 500K, 1M and 2M frames",
        },
    ),
    "urlb-pixels": Source(
        text="The same from images. An action lasts two frames, so numbers of steps are halved. f is "
        "contrastive, as in the paper, where URLB's code uses dynamics.",
        command="voidrl pretrain dmc/walker --preset urlb-pixels --engine compile",
        base="urlb-states",
        notes={
            "env.dmc.action_repeat": URLB,
            "representation.name": "the paper's",
            "replay.capacity_steps": "10.6 GB on the GPU; URLB keeps 1M on disk",
            "learner.trunk_dim": "f is the trunk of actor and critic",
        },
    ),
}
