"""The contract of a method: it sees tensors and returns the intrinsic reward of each transition.

A new method is one new file in this folder, or a class of your own passed as `method=`. Only `reward` is
required. Skill methods set `skill_dim`: the policy is conditioned on a vector that is drawn per episode, or
every `skill_every_steps`, and stored with every transition. Methods on successor features can bring their own
critic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.config import Config as RunConfig
from voidrl.config import LearnerConfig, MethodConfig
from voidrl.errors import NeighborError
from voidrl.nets import target_copy
from voidrl.nets.augment import default_shift
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics


class Option(NamedTuple):
    """The uninterrupted steps with one skill to which each of B transitions belongs.

    It ends with the skill, the episode or a life, and the next one begins there.
    """

    first: Tensor  # (B, dim) latents of the state in which it began
    last: Tensor  # (B, dim) latents of the state after its last step
    steps: Tensor  # (B,) how many steps it took
    mask: Tensor  # (B,) 1 where it is over, not too long and still stored; elsewhere the rest means nothing


class Latents:
    """f(s) and f(s') of a batch, each encoded when it is first read; and `representation`, which is f.

    `pool(n)`: (n, dim), latents of n more states drawn from the replay, without gradients.
    """

    def __init__(
        self,
        z: Callable[[], Tensor],
        z_next: Callable[[], Tensor],
        pool: Callable[[int], Tensor],
        option: Callable[[int], Option] | None = None,
        representation: Representation | None = None,
    ) -> None:
        self._z, self._z_next, self.pool, self._option = z, z_next, pool, option
        self.representation = representation

    @cached_property
    def z(self) -> Tensor:
        """f(s), (B, dim)."""
        return self._z()

    @cached_property
    def z_next(self) -> Tensor:
        """f(s'), (B, dim)."""
        return self._z_next()

    def option(self, longest: int) -> Option:
        """The option of each transition, where it takes no more than `longest` steps."""
        assert self._option is not None, "these latents belong to no replay"
        found = self._option(longest)
        self._last = found.last
        return found

    @property
    def encoded(self) -> Tensor | None:
        """Latents that have been read already, if any have."""
        names = ("z_next", "z", "_last")
        return next((vars(self)[name] for name in names if name in vars(self)), None)


class About(NamedTuple):
    """A method's line in `voidrl list methods`, behind the first line of its file.

    All values are literals, so that listing imports nothing.
    """

    family: Literal["knowledge", "data", "competence", "baseline"]
    year: int | None
    """Year of the paper."""
    paper: str
    """Authors and arXiv number."""
    skills: Literal["none", "discrete", "continuous", "both"] = "none"


class Method(nn.Module):
    """Intrinsic reward while pre-training. Never sees environments, replay, optimizers or the loop."""

    Config: ClassVar[type[MethodConfig]] = MethodConfig
    about: ClassVar[About | None] = None
    """Its line in `voidrl list methods`."""
    learns: ClassVar[bool] = True
    """False: the agent acts uniformly at random and nothing is trained."""
    image_representation: ClassVar[str] = "simclr"
    """The representation that `auto` stands for on images; on vectors it is `identity`, and in place of
    `simclr` it is `icm` on images with a side below 16 pixels, which are not shifted."""
    learner: ClassVar[str] = ""
    """The only learner that serves the method, which `auto` then stands for; empty: any."""
    reads_latents: ClassVar[bool] = True
    """False: the method does not look at f, so a representation that serves nothing else is not trained. If
    that depends on the config, it is what holds by default, and `uses_latents` decides."""
    can_train_encoder: ClassVar[bool] = False
    """Whether the gradient of `losses` may reach f, where `encoder_trainers` names `method`."""
    constant_reward: ClassVar[bool] = False
    """True: the reward may be the same for all transitions by design, so that nobody is warned of it."""
    counts_visits: ClassVar[bool] = False
    """True: `observe` counts what the environments of one process reach, so that a run takes one rank."""
    loss_batches: int = 1
    """Batches on which an update minimizes `losses`, one after another; the learner's own is the last."""
    skill_dim: int = 0
    """Width of the skill vector; 0 for methods without skills."""
    reward_dim: int = 0
    """Width of vector rewards; 0 for scalars. Vectors are as wide as skills, and a reward's scalar product
    with the skill is what the policy maximizes (`scalar_reward`). They take a `voidrl.nets.SuccessorCritic`,
    such as that of `successor_critic`, and a learner that takes vector rewards (`dqn`)."""
    note_dim: int = 0
    """Width of what `observe` notes on each state, to be stored with the step that led there."""
    regresses_skill: ClassVar[bool] = False
    """True: `select_skill` works with transitions of any policy, so that random actions will do."""
    skill_choice: str = "which earned most in the warm-up"
    """How `select_skill` chose the skill, for the sentence that names it."""

    def __init__(self, spec: EnvSpec, config: MethodConfig, representation: Representation) -> None:
        super().__init__()
        self.spec, self.config = spec, config  # the representation only sizes networks, and is not kept

    @classmethod
    def default_representation(cls, spec: EnvSpec) -> str:
        """The representation that `auto` stands for; `learner` uses the learner's encoder as it is."""
        if not cls.reads_latents:
            return "learner"
        if not spec.pixels:
            return "identity"
        if cls.image_representation == "simclr" and default_shift(spec.frame_shape[1:]) == 0:
            return "icm"  # without augmentation there are no two views to contrast
        return cls.image_representation

    @classmethod
    def uses_latents(cls, config: RunConfig) -> bool:
        """Whether the method looks at f under this config."""
        return cls.reads_latents

    @classmethod
    def check(cls, spec: EnvSpec, config: RunConfig) -> None:
        """Refuse an environment or a config that the method cannot serve, before pre-training begins.

        By default, more neighbors than there are to search, where the config has a field `k`.
        """
        k, pool = getattr(config.method, "k", 0), getattr(config.method, "pool", 0)
        include_self = getattr(config.method, "include_self", False)
        field, size = ("method.pool", pool) if pool else ("learner.batch_size", config.learner.batch_size)
        found = pool or size - 1
        if k - include_self > found:
            remedy = f"method.k = {found + include_self} or less" if found else f"a larger {field}"
            raise NeighborError(
                f"method.k = {k} cannot be used with {field} = {size}: a state has {found} others to search; "
                f"use {remedy}, or a method without neighbors such as rnd"
            )

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The intrinsic reward of each transition, (B,), or (B, reward_dim). Called without gradients.

        Once per update, or with n-step returns once for each of the n steps of every transition.
        """
        raise NotImplementedError

    def scalar_reward(self, reward: Tensor, skill: Tensor) -> Tensor:
        """(B,): rewards as `reward` returns them, or sums of them, with vectors contracted with the skill."""
        return (reward * skill).sum(1) if self.reward_dim else reward

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """Yield the losses of the method's own networks, if it has any; before `reward`, in every update.

        Once, or `loss_batches` times, each with transitions of its own. The last are those to be rewarded.
        `Loss.optimizer` names one of `groups`. Each loss is minimized before the next is asked for: compute
        it after the previous `yield`, since weights have changed by then. The transitions are single steps
        even if the learner's are n-step, except with `intrinsic_n_step = "single"`. `latents` carry gradients
        only if the method trains f: then all its losses are added up, with those of the other trainers of f.
        """
        return iter(())

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each optimizer by name; `method` has all of them by default."""
        return {"method": list(self.parameters())}

    def learning_rate(self, group: str) -> float | Tensor:
        """The learning rate of a group; a buffer of one number where it changes."""
        return self.config.learning_rate

    def after_update(self, representation: Representation) -> None:
        """Change state in place after an update (queues, moving averages); captured in CUDA graphs."""

    def begin(self, obs: Tensor, env: Tensor, representation: Representation) -> None:
        """Begin episodes in the environments with the (n,) numbers `env`, in the states (n, *obs_shape).

        Called eagerly, before `observe`, if overridden: for all environments at the start of a run and after
        each checkpoint, later for those that were reset. What is kept for an episode need not be saved.
        """

    def observe(
        self, obs: Tensor, skill: Tensor, env: Tensor, representation: Representation
    ) -> Tensor | None:
        """Update with the states that environments have just reached, (n, *obs_shape), each exactly once.

        Called eagerly at every environment step of pre-training and of runs with a bonus, if overridden: for
        visit counts and running statistics. Write to buffers in place. `skill`, (n, skill_dim), led there;
        `env`, (n,), has the numbers of the environments. With a `note_dim`, return (n, note_dim): the
        `batch.note` of these steps.
        """
        return None

    def set_progress(self, steps: int, total: int) -> None:
        """Move schedules to where they are after `steps` of `total` environment steps, in place in buffers.

        Called eagerly before every environment step. A resumed run may have a larger total than before.
        """

    def metrics(self) -> Metrics:
        """Scalars about the method's state, logged with every update."""
        return {}

    # Skills

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """(n, skill_dim): a new skill for each of n environments, given their steps in the episode, (n,)."""
        return torch.zeros(len(episode_steps), self.skill_dim, device=episode_steps.device)

    def trial_skills(self) -> Tensor | None:
        """(K, skill_dim): the skills that the warm-up of fine-tuning tries in turn; None samples them."""
        return None

    def select_skill(self, batch: Batch, latents: Latents) -> Tensor:
        """(skill_dim,): the skill for a task, given transitions of the warm-up with the task's reward.

        Called once, when the warm-up of fine-tuning is over. By default the skill with the highest mean
        reward.
        """
        skills, inverse = torch.unique(batch.skill, dim=0, return_inverse=True)
        total = torch.zeros(len(skills), device=batch.reward.device).index_add_(0, inverse, batch.reward)
        mean = total / inverse.bincount(minlength=len(skills))
        if len(skills) > 1 and mean.allclose(mean[0]):  # host read, once in a run
            self.skill_choice = f"although all {len(skills)} that were tried earned the same in the warm-up"
        return skills[mean.argmax()]  # type: ignore[no-any-return]

    def make_critic(self, feature_dim: int, config: LearnerConfig) -> nn.Module | None:
        """A critic to use in place of the learner's, for instance on successor features.

        `critic(features, skill, action) -> (2, B)` for continuous actions,
        `critic(features, skill) -> (B, num_actions)` for discrete ones. With vector rewards it is a
        `voidrl.nets.SuccessorCritic`, such as that of `successor_critic`. If it has `acting_values`, with
        arguments and result of the critic itself, `dqn` chooses actions by these.
        """
        return None


def momentum_encoder(representation: Representation) -> nn.Module | None:
    """A copy of f for a moving average of its weights; None unless f is a network that learns."""
    encoder = representation.encoder
    plain = type(representation).encode is Representation.encode
    learns = encoder is not None and any(p.requires_grad for p in encoder.parameters())
    return target_copy(encoder) if encoder is not None and plain and learns else None


def whole_minibatch(z: Tensor) -> Tensor:
    """(size · n, dim): the (n, dim) particles of all processes, this one's first."""
    group = dist.current()
    return dist.all_gather(z).roll(-group.rank * len(z), 0) if group.is_distributed else z
