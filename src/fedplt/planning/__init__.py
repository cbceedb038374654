# mypy: implicit-reexport
"""Which client trains what: layers, allocation, assignments, plans, costs, messages. NumPy only."""

from __future__ import annotations

from fedplt.planning.allocation import Allocation, allocation_of, balanced_allocation
from fedplt.planning.assignment import (
    DEFAULT_RECIPE,
    Assignment,
    LocalRecipe,
    Normalizer,
    Rows,
    SliceAssignment,
    whole_assignment,
)
from fedplt.planning.encoding import (
    DIFFERENCES,
    Encoding,
    Packing,
    Values,
    decode,
    encode,
    encoded_size,
)
from fedplt.planning.flops import (
    BACKWARD_FLOPS_PER_PARAMETER,
    FORWARD_FLOPS_PER_PARAMETER,
    Flops,
    exact_flops,
    paper_flops_of,
)
from fedplt.planning.layers import (
    FlatIndex,
    Layer,
    LayerNote,
    Layers,
    ModuleFlow,
    PlacedTensor,
    Product,
    TensorSpec,
    dotted,
    merge,
    split_name,
)
from fedplt.planning.message_sizes import (
    BYTES_PER_NUMBER,
    REPORT_BYTES,
    download_bytes,
    state_packing,
    update_header,
    update_packing,
    upload_bytes,
)
from fedplt.planning.plan import Plan, RoundAssignments, Uncovered, make_plan, sublayers_assignment
from fedplt.planning.rounding import Turns, balanced_ratios, next_counts
from fedplt.planning.submodel_plans import (
    SubmodelPlan,
    closest_rates,
    expected_keep_rates,
    kept_units,
    submodel_plan,
    submodel_sizes,
)
from fedplt.planning.submodels import (
    ChannelPad,
    Spaces,
    SubmodelAssignment,
    TensorUnits,
    Units,
    read_assignment,
)
