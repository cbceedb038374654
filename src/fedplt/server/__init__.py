"""What happens on the server: updates are validated, aggregated, and moved by an optimizer."""

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
