"""Measures how long the learner waits for the environments."""

from __future__ import annotations

import time
from typing import Any, Self

import torch


class IdleTimer:
    """Time in which the learner has nothing to do while the environments step.

    On CUDA it is measured between two events in the stream: the first passes when the earlier updates are
    done, the second when the host, back from the environments, has recorded it.
    """

    def __init__(self, device: torch.device) -> None:
        # A run stays on one stream, and asking for it takes longer than recording an event.
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._spans: list[tuple[Any, Any]] = []

    def __enter__(self) -> Self:
        self._began = self._now()
        return self

    def __exit__(self, *exc: object) -> None:
        self._spans.append((self._began, self._now()))

    def _now(self) -> Any:
        if self._stream is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def flush(self) -> float:
        """Idle seconds since the last flush; on CUDA the host waits here for the last event."""
        spans, self._spans = self._spans, []
        if self._stream is None:
            return float(sum(end - begin for begin, end in spans))
        if spans:
            spans[-1][1].synchronize()
        return float(sum(begin.elapsed_time(end) for begin, end in spans)) / 1000
