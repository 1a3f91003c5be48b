"""An agent without its numbers: whether its pieces fit each other and the environment, and its size."""

from __future__ import annotations

import torch

from voidrl.agent import Agent
from voidrl.config import Config
from voidrl.errors import VoidrlError
from voidrl.types import EnvSpec

MOMENTS = 2  # that Adam keeps of every weight


def outline_bytes(spec: EnvSpec, config: Config) -> int | None:
    """What a checkpoint keeps of the agent and its optimizers; an error where the agent cannot be made.

    None where it can be made with numbers alone, as a piece of one's own may read them while it is made.
    """
    nowhere = torch.device("meta")  # shapes alone: no memory is taken, and nothing random is drawn
    try:
        with nowhere:
            agent = Agent(spec, config, nowhere)
    except VoidrlError:
        raise
    except Exception:  # whatever code of one's own does without numbers; the run itself tells what is wrong
        return None
    tensors = [*agent.state_dict().values()]
    for optimizer in agent.optimizers.values():
        tensors += MOMENTS * [weight for group in optimizer.param_groups for weight in group["params"]]
    return sum(int(tensor.numel() * tensor.element_size()) for tensor in tensors)
