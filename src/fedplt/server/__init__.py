# mypy: implicit-reexport
"""What happens on the server: validation, aggregation, server optimizers and diagnostics."""

from __future__ import annotations

from fedplt.server.aggregation import Aggregator
from fedplt.server.aggregation_rules import RULES, AggregationRule, ClippedMean
from fedplt.server.average import AverageSettings, ModelAverage
from fedplt.server.client_weights import (
    claim_cap,
    claim_factors,
    over_probabilities,
    update_weights,
)
from fedplt.server.diagnostics import Diagnostics
from fedplt.server.differential_privacy import PrivateAggregator, SecretStream
from fedplt.server.downlink import Broadcast, Downlink
from fedplt.server.optimizers import Memory, ServerOptimizer
from fedplt.server.update_memory import MemoryAggregator, MemorySettings, UpdateMemory
from fedplt.server.validation import (
    MAX_LOSS,
    norm_problem,
    outliers,
    read_each,
    refusal,
    validate,
    validate_evaluation,
)
