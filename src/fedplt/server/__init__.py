"""What happens on the server: validation, aggregation, server optimizers and diagnostics."""

from __future__ import annotations

from fedplt.server.aggregation import Aggregator
from fedplt.server.diagnostics import Diagnostics
from fedplt.server.optimizers import Memory, ServerOptimizer
from fedplt.server.validation import validate

__all__ = [
    "Aggregator",
    "Diagnostics",
    "Memory",
    "ServerOptimizer",
    "validate",
]
