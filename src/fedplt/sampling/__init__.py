# mypy: implicit-reexport
"""Client sampling: probabilities (from update norms, or known before training), and the draw.

Choose ``fedplt-ocs`` if uploads cost by size (:func:`sampling_probabilities`), ``ocs`` if all
clients cost the same (ratios 1), ``approximate-ocs`` if the server must not see the norm of a
single client, and ``paper-ocs`` only to compare with the rule as the paper prints it.
"""

from __future__ import annotations

from fedplt.sampling.probabilities import (
    approximate_probabilities,
    paper_probabilities,
    sampling_probabilities,
    sampling_variance,
)
from fedplt.sampling.samplers import (
    RULES,
    SAMPLERS,
    Rule,
    Sampler,
    SamplingRequest,
    independent_sample,
    most_drawn,
)
