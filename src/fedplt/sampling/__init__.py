"""Who takes part in a round: probabilities from update norms, and the draw.

Choose ``fedplt-ocs`` where uploads cost by size (:func:`sampling_probabilities`), ``ocs`` where all
clients cost the same (ratios 1), ``approximate-ocs`` where the server must not see a single
client's norm, and ``paper-ocs`` only to compare with the rule as the paper prints it.
"""

from fedplt.sampling.approximate import approximate_probabilities as approximate_probabilities
from fedplt.sampling.draw import independent_sample as independent_sample
from fedplt.sampling.draw import uniform_sample as uniform_sample
from fedplt.sampling.optimal import proportional_probabilities as proportional_probabilities
from fedplt.sampling.optimal import sampling_probabilities as sampling_probabilities
from fedplt.sampling.optimal import sampling_variance as sampling_variance
from fedplt.sampling.printed import paper_probabilities as paper_probabilities
from fedplt.sampling.rules import RULES as RULES
from fedplt.sampling.rules import Rule as Rule
