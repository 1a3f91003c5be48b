"""Checkpoints of a few bytes, and what goes wrong with them."""

import os

import torch

from voidrl.runs.checkpoint import Group, save

AGENT, REPLAY = "agent.safetensors", "replay-000.safetensors"


def quick_save(root, step, value=None, tag=None, keep_last=100, **meta):
    """A checkpoint whose every part says `value`, so that a mixture of two would show."""
    value = step if value is None else value
    files = {
        AGENT: Group({"w": torch.full((5, 3), float(value)), "n": torch.tensor(value)}),
        REPLAY: Group(lambda: {"frames": torch.full((1000,), value % 256, dtype=torch.uint8)}, tag),
    }
    return save(root, step, files, {"value": value, **meta}, keep_last=keep_last)


def value_of(found):
    """What the checkpoint says, in all its parts alike."""
    value = found.meta["value"]
    agent, replay = found.tensors(AGENT), found.tensors(REPLAY)
    assert agent["n"].item() == value
    assert (agent["w"] == value).all()
    assert (replay["frames"] == value % 256).all()
    return value


def hidden(root):
    return sorted(path.name for path in root.iterdir() if path.name.startswith("."))


def fail(message):
    raise AssertionError(f"unexpected warning: {message}")


def flip(path, position=None):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 1
    path.write_bytes(data)


def truncate(path):
    os.truncate(path, path.stat().st_size - 7)
