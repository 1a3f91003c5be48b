"""Rows of metrics: `metrics.jsonl`, TensorBoard, W&B, and warnings."""

from voidrl.training.metrics.health import HealthMonitor
from voidrl.training.metrics.writer import MetricsWriter, require_rows

__all__ = ["HealthMonitor", "MetricsWriter", "require_rows"]
