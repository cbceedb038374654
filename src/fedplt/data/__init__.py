# mypy: implicit-reexport
"""Data sets: fetched, loaded, and split among clients."""

from __future__ import annotations

from fedplt.data.catalog import CATALOG, Scaling, fetch_data_set, load_data_set
from fedplt.data.dataset_samples import CheckTargets, DatasetSamples
from fedplt.data.downloads import Fetching, Progress
from fedplt.data.samples import (
    FIRST_EXAMPLES,
    Augment,
    Samples,
    TensorSamples,
    first_examples,
    map_tensors,
    named_inputs,
    tensors_in,
)
from fedplt.data.splits import Split, split_dirichlet, split_given, split_iid, split_shards
from fedplt.data.training_data import TrainingData, as_samples
