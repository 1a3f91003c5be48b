"""The agent's optimizers, one Adam per named group of weights, and losses that are minimized together.

Every trainable weight is in exactly one optimizer. A loss is differentiated with respect to the weights of
the optimizers that minimize it and no others, so nothing is trained by a loss that does not name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.config.pieces import OptimizerConfig
from voidrl.errors import ConfigError
from voidrl.nets.spectral import full_precision
from voidrl.types import Metrics

if TYPE_CHECKING:
    from voidrl.agent.agent import Agent

DEFAULTS = OptimizerConfig()
RESERVED_GROUPS = {"actor", "critic", "encoder", "policy", "representation", "temperature", "value"}
"""Names of optimizers of built-in learners and representations, whether this agent has them or not."""


class Optimizers:
    """Adam by name, each created on first use: importing it takes seconds that a playing agent saves."""

    def __init__(self, device: torch.device, biases: Iterable[nn.Parameter] = ()) -> None:
        """`biases` do not decay, whatever their shape: an ensemble's have three dimensions."""
        self.device = device
        self._biases = set(biases)
        self._groups: dict[str, list[dict[str, Any]]] = {}
        self._configs: dict[str, OptimizerConfig] = {}
        self._kinds: dict[str, type[torch.optim.Adam]] = {}
        self._adams: dict[str, torch.optim.Adam] = {}

    def add(
        self,
        name: str,
        rates: Mapping[nn.Parameter, float | Tensor],
        config: OptimizerConfig = DEFAULTS,
        weight_decay: float = 0.0,
    ) -> None:
        """Add an optimizer for the trainable of these weights, each with its learning rate, if there are any.

        Biases do not decay, nor do other weights of one dimension: those of normalizations.
        """
        parts: dict[float | Tensor, dict[float, list[nn.Parameter]]] = {}
        for weight, rate in rates.items():
            if weight.requires_grad:
                decay = weight_decay if weight.ndim > 1 and weight not in self._biases else 0.0
                parts.setdefault(rate, {}).setdefault(decay, []).append(weight)
        groups = [
            {"params": weights, "lr": rate, "weight_decay": decay}
            for rate, by_decay in parts.items()
            for decay, weights in by_decay.items()
        ]
        if groups:
            self._groups[name], self._configs[name] = groups, config
            self._kinds[name] = torch.optim.AdamW if weight_decay else torch.optim.Adam

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def __getitem__(self, name: str) -> torch.optim.Adam:
        if name not in self._adams:
            groups, on_cuda = self._groups[name], self.device.type == "cuda"
            # Adam rejects a tensor as its learning rate unless it is capturable: rates are set afterwards.
            without = [{**group, "lr": 0.0} for group in groups]
            kind, eps = self._kinds[name], self._configs[name].adam_eps
            adam = self._adams[name] = kind(without, eps=eps, fused=True, capturable=on_cuda)
            for made, planned in zip(adam.param_groups, groups, strict=True):
                made["lr"] = planned["lr"]
        return self._adams[name]

    def values(self) -> list[torch.optim.Adam]:
        """All of them."""
        return [self[name] for name in self]

    def parameters(self, name: str) -> list[nn.Parameter]:
        """The weights of one of them, in order."""
        return [p for group in self._groups[name] for p in group["params"]]

    def all_parameters(self) -> list[nn.Parameter]:
        """The weights of all of them."""
        return [p for name in self for p in self.parameters(name)]

    def minimize(self, names: Sequence[str], loss: Tensor) -> None:
        """One step of the named optimizers; only their weights receive gradients."""
        for name in names:
            if name not in self:
                raise ConfigError(
                    f"a loss names optimizer {name!r}, which has nothing to train: expected "
                    f"{' or '.join(map(repr, self))}; yield no loss for a group without parameters"
                )
            self[name].zero_grad()
        weights = [p for name in names for p in self.parameters(name)]
        if loss.requires_grad:
            with full_precision(loss):  # or the gradients of full-precision layers would be bf16
                loss.backward(inputs=weights)
        for name in names:
            if all(weight.grad is None for weight in self.parameters(name)):
                raise ConfigError(
                    f"the loss of optimizer {name!r} depends on none of its weights, so that it would train "
                    f"nothing: name the optimizer of the weights that it depends on, or look for .detach()"
                )
        if dist.current().is_distributed:
            for weight in weights:
                if weight.grad is None:  # as if it were 0, so that all ranks list the same weights
                    weight.grad = torch.zeros_like(weight)
            dist.average_([weight.grad for weight in weights if weight.grad is not None])
        for name in names:
            if max_norm := self._configs[name].max_grad_norm:
                nn.utils.clip_grad_norm_(self.parameters(name), max_norm)
            self[name].step()

    @torch.no_grad()
    def forget(self, parameters: set[nn.Parameter]) -> None:
        """Set the moments and counters of these weights to 0, in place."""
        for adam in self._adams.values():
            for parameter in parameters & adam.state.keys():
                for value in adam.state[parameter].values():
                    value.zero_()

    # State

    def tensors(self) -> dict[str, Tensor]:
        """Moments and counters by name."""
        return {
            f"{name}/{i}/{key}": value
            for name, adam in self._adams.items()
            for i, parameter in enumerate(self.parameters(name))
            for key, value in adam.state[parameter].items()
        }

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        for name in self if tensors else ():
            adam = self[name]
            for i, parameter in enumerate(self.parameters(name)):
                saved = {k.split("/")[2]: v for k, v in tensors.items() if k.startswith(f"{name}/{i}/")}
                # The counter stays float32, whatever the weights are.
                adam.state[parameter] = {
                    k: v.to(parameter.device, v.dtype if k == "step" else parameter.dtype, copy=True)
                    for k, v in saved.items()
                }


class Aside:
    """A context for a loss that changes no weights: here in the order of the code; the engine overlaps it."""

    @contextmanager
    def __call__(self, *read: Any) -> Iterator[None]:
        """Compute what is inside, which reads these tensors."""
        yield

    def join(self) -> None:
        """Wait for it."""


class JointLoss:
    """Losses of the same weights that wait to be minimized together, in one backward pass.

    No weight changes before that, so that one of them may be computed aside.
    """

    def __init__(self, aside: Aside | None = None) -> None:
        self.aside = aside or Aside()
        self.optimizers: list[str] = []
        self.priority_terms: list[Tensor] = []
        """(B,) each: errors of the learner's transitions, whose sum becomes their priority in the replay."""
        self._terms: list[Tensor] = []

    def __bool__(self) -> bool:
        """Whether a loss waits."""
        return bool(self._terms)

    def add(self, value: Tensor, optimizers: list[str]) -> None:
        """Add a loss to the sum."""
        self._terms.append(value)
        self.optimizers += [name for name in optimizers if name not in self.optimizers]

    def total(self) -> Tensor:
        """Return the sum, and clear it."""
        self.aside.join()
        terms, self._terms = self._terms, []
        return reduce(torch.add, terms)


def require_loss(name: str, returned: Any, n: int) -> tuple[Tensor, Metrics]:
    """What a representation's `loss` of n transitions returned, if that can be minimized."""
    fits = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)
    loss = returned[0] if fits else returned
    if not fits or not isinstance(loss, Tensor) or loss.shape not in ((), (n,)):
        given = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(
            f"loss of representation {name!r} returned {given}: expected a scalar tensor, or one loss for "
            f"each transition, and a dictionary of metrics"
        )
    if not loss.requires_grad:
        raise ConfigError(
            f"loss of representation {name!r} has no gradient: expected one that depends on trainable "
            f"weights; look for .detach() or torch.no_grad()"
        )
    return loss, returned[1]


def make_optimizers(agent: Agent, device: torch.device) -> Optimizers:
    """One Adam for each group of weights that a loss names."""
    biases = (p for name, p in agent.named_parameters() if name.endswith(".bias"))
    optimizers = Optimizers(device, biases)
    if not agent.learns:
        return optimizers
    config, phase, decay = agent.config, agent.effective, agent.config.learner.weight_decay
    special: dict[nn.Parameter, float] = {}
    if phase.encoder_learning_rate is not None:
        special |= dict.fromkeys(agent.learner.encoder.parameters(), phase.encoder_learning_rate)
    if (rate := phase.first_layer_learning_rate) is not None:
        special |= {p: rate for layer in agent.learner.first_layers for p in layer.parameters()}
    taken: set[nn.Parameter] = set()
    for name, group in agent.learner.groups().items():
        rates = {p: special.get(p, phase.learning_rate) for p in group}
        taken |= rates.keys()
        optimizers.add(name, rates, config.learner, decay)
    if agent.uses_method or agent.trains_representation:
        f, rate = config.representation, config.representation.learning_rate
        warmed_up = agent.representation_rate if f.warmup_updates else rate
        own = [p for p in agent.representation.parameters() if p not in taken]
        heads_only = agent.trains_representation and "representation" not in agent.encoder_trainers
        if heads_only and "method" in agent.encoder_trainers:  # which trains the encoder
            inner = agent.representation.encoder
            encoder = set() if inner is None else {*inner.parameters()}
            optimizers.add("encoder", {p: rate for p in own if p in encoder}, f, decay)
            own = [p for p in own if p not in encoder]
        optimizers.add("representation", dict.fromkeys(own, warmed_up), f, decay)
    if agent.uses_method:
        groups = {name: list(group) for name, group in agent.method.groups().items()}
        _check_groups(agent, groups)
        for name, parameters in groups.items():
            mine = [p for p in parameters if p not in taken]
            optimizers.add(name, dict.fromkeys(mine, agent.method.learning_rate(name)))
    return optimizers


def _check_groups(agent: Agent, groups: dict[str, list[nn.Parameter]]) -> None:
    """Refuse groups of a method that would leave weights untrained, its own or those of others."""
    name = agent.config.method.name
    if taken := sorted((RESERVED_GROUPS | {*agent.learner.groups()}) & {*groups}):
        raise ConfigError(
            f"groups() of method {name!r} has {taken[0]!r}, which is reserved for other optimizers of the "
            f"agent: use another name, such as {'method_' + taken[0]!r}"
        )
    listed = [id(p) for parameters in groups.values() for p in parameters]
    others = {id(p) for piece in (agent.learner, agent.representation) for p in piece.parameters()}
    for weight, parameter in agent.method.named_parameters():
        count = listed.count(id(parameter))
        if count > 1 or (not count and parameter.requires_grad and id(parameter) not in others):
            there = f"in {count} groups" if count else "in no group"
            raise ConfigError(
                f"weight {weight} of method {name!r} is {there} of groups(): expected exactly one, whose "
                f"loss trains it, or requires_grad = False for weights that stay as they are"
            )
