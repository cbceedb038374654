"""What happens on the server: validation, aggregation, server optimizers and diagnostics."""

from __future__ import annotations

from fedplt.server.aggregation import Aggregator
from fedplt.server.clipping import ClippedAggregator
from fedplt.server.diagnostics import Diagnostics
from fedplt.server.noise import SecretStream
from fedplt.server.optimizers import Memory, ServerOptimizer
from fedplt.server.private import PrivateAggregator
from fedplt.server.robust import OrderAggregator
from fedplt.server.rules import RULES, AggregationRule
from fedplt.server.validation import (
    MAX_LOSS,
    norm_problem,
    read_each,
    refusal,
    validate,
    validate_evaluation,
)

__all__ = [
    "MAX_LOSS",
    "RULES",
    "AggregationRule",
    "Aggregator",
    "ClippedAggregator",
    "Diagnostics",
    "Memory",
    "OrderAggregator",
    "PrivateAggregator",
    "SecretStream",
    "ServerOptimizer",
    "norm_problem",
    "read_each",
    "refusal",
    "validate",
    "validate_evaluation",
]
