"""Metrics: device scalars → one host read per row → `metrics.jsonl`, TensorBoard, W&B, and warnings."""

from voidrl.metrics.accumulator import CHECK, Accumulator, NonFinite
from voidrl.metrics.health import HealthMonitor
from voidrl.metrics.writer import MetricsWriter, require_rows

__all__ = ["CHECK", "Accumulator", "HealthMonitor", "MetricsWriter", "NonFinite", "require_rows"]
