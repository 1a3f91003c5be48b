"""What a preset is for and where its values come from, in words; the values are read from the code."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Source:
    """About one preset."""

    text: str
    command: str
    base: str | None = None
    """The preset from which it differs; None, the defaults."""
    pixels: bool = True
    """What it is made for: images or vectors."""
    discrete: bool = False
    """Numbered or continuous actions."""
    notes: dict[str, str] = field(default_factory=dict)
    """About single fields: who says so, or why."""


OFTEN = "long runs are logged and saved less often"
TABLE = "the paper's table of Atari"
DMC_TABLE = "the paper's table of DMControl"
ENCODER_TABLE = "its table of the encoder"
TEXT = "the paper's text"
URLB = "URLB's code"
SPELLED = "what `auto` would choose, spelled out"

SOURCES = {
    "maze-demo": Source(
        text="What `voidrl demo` runs: small networks and batches, one update every four steps. The "
        "values were tuned on seeds 1 and 2 of the demo's maze ([what it shows and what "
        "not](demo.md)).",
        command="voidrl pretrain 'voidrl/PixelMaze-v0?size=13&loops=0.1' --preset maze-demo --steps 16k",
        discrete=True,
        notes={
            "updates_per_step": "minutes on a CPU; the paper has 2",
            "method.mean_momentum": "the mean reward drifts as f learns, so its estimate forgets",
            "learner.n_step": "longer returns carry reward through corridors",
            "learner.target_tau": "and so does a fast target",
            "reward_scale": "pre-trained values are about 1 a step; a single 1 at the goal must stand out",
            "augment.shift_pixels": "1 pixel is a third of a cell",
            "log.eval_epsilon": "without noise every episode of a deterministic maze is the same",
        },
    ),
    "atari-paper": Source(
        text="The values of the paper's tables, and where these are silent or contradict the text, what "
        "we chose ([the list](paper.md#where-the-paper-contradicts-itself)). It is the default for "
        "`atari/…`. On one H200 its 250M steps would take 8 days.",
        command="voidrl pretrain atari/ms_pacman --preset atari-paper --engine compile",
        discrete=True,
        notes={
            "env.frame_stack": TABLE,
            "steps": TEXT,
            "warmup_steps": f"{TABLE}: min replay size for sampling",
            "representation.encoder.feature_dim": f"{ENCODER_TABLE}; the text has 15",
            "representation.encoder.hidden_dim": ENCODER_TABLE,
            "representation.encoder.spectral_norm_iterations": TEXT,
            "representation.warmup_updates": "ours: without it f "
            "[collapses](environments/atari.md#contrast-needs-a-warm-up)",
            "learner.batch_size": f"{TABLE}; the text has 512, which is taken for contrast alone",
            "learner.n_step": TABLE,
            "learner.target_tau": f"{TABLE}: target network, update period 1",
            "encoder_owner": SPELLED,
            "augment.intensity_scale": f"{TABLE} names intensity, without a scale",
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
        text="The paper's values for hours of one GPU instead of days. Steps are cheap and updates are "
        "not, so it makes 32 times fewer of them on larger batches. As it stands it has been run "
        "for its rates; the [evidence](../results/atari/README.md) was made with half its updates "
        "and another `target_tau`.",
        command="voidrl pretrain atari/ms_pacman --preset atari-fast --engine compile",
        base="atari-paper",
        discrete=True,
        notes={
            "env.num_envs": "emulation by 16 threads",
            "updates_per_step": "with this one H200 and 16 cores keep each other busy",
            "representation.batch_size": "half the contrast",
            "learner.batch_size": "larger batches use the GPU; also the pool of particles",
            "learner.n_step": "f of n + 1 states is computed for every transition",
            "learner.learning_rate": "larger batches",
            "learner.target_tau": "a target that lags some ten updates; 0.01 was "
            "[too slow to unlearn](../results/atari/README.md#fine-tuning)",
            "warmup_steps": "64 environments",
            "replay.capacity_steps": "2.8 GB on the GPU",
            "finetune.updates_per_step": "32 sampled transitions a step",
        },
    ),
    "atari-demo": Source(
        text="See how it works, not how well: narrow networks, small batches, and the states that are "
        "visited are counted.",
        command="voidrl pretrain atari/ms_pacman --preset atari-demo",
        base="atari-fast",
        discrete=True,
        notes={"env.count_states": "a second emulation of every step"},
    ),
    "dmc-paper": Source(
        text="The values of the paper's tables for DMControl from pixels. The paper gives neither the "
        "length of fine-tuning nor the hidden layer of the encoder there. It has not been run at "
        "its own scale.",
        command="voidrl pretrain dmc/walker --preset dmc-paper --engine compile",
        notes={
            "env.frame_stack": DMC_TABLE,
            "env.dmc.observation": TEXT,
            "steps": f"{TEXT}: 5M, read as steps of the agent",
            "representation.encoder.stack": f"{DMC_TABLE}: strides 2, 2, 2, 1",
            "representation.encoder.hidden_dim": f"{ENCODER_TABLE}, which is Atari's",
            "representation.encoder.spectral_norm_iterations": TEXT,
            "learner.batch_size": DMC_TABLE,
            "share_encoder": f"{DMC_TABLE}: shared encoder",
            "encoder_owner": SPELLED,
            "finetune.steps": "ours: the paper does not say",
            "finetune.warmup_actions": f"{DMC_TABLE}: 1000 random steps",
            "log.log_every_steps": OFTEN,
            "log.checkpoint_every_steps": OFTEN,
        },
    ),
    "dmc-fast": Source(
        text="The paper's networks for less than an hour of one GPU: more simulations at once, cheaper "
        "images, an eighth of the updates, half the batches.",
        command="voidrl pretrain dmc/walker --preset dmc-fast --engine compile",
        base="dmc-paper",
        notes={"env.dmc.render_quality": "no shadows and no multisampling: a quarter of the cost"},
    ),
    "urlb-states": Source(
        text="The protocol of [URLB](https://arxiv.org/abs/2110.15191) and its code's APT, from states. "
        "It is the default for `dmc/…`. Where it differs from URLB's code: "
        "[DMControl](environments/dmcontrol.md#presets).",
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
            "representation.batch_size": f"{URLB}: the learner's own transitions",
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
        text="The same from images. A step holds its action for two frames, so numbers of steps are "
        "halved. f is learned by contrast, as in the paper, where URLB's code has dynamics.",
        command="voidrl pretrain dmc/walker --preset urlb-pixels --engine compile",
        base="urlb-states",
        notes={
            "env.dmc.action_repeat": URLB,
            "representation.name": "the paper's",
            "replay.capacity_steps": "10.6 GB of a GPU; URLB keeps 1M on disk",
            "learner.trunk_dim": "f is the trunk of both",
        },
    ),
}
