# mypy: implicit-reexport
"""Turn a torch module into the layers of a plan: its tensors, and how they are cut."""

from __future__ import annotations

from fedplt.cutting.channels import ChannelPaths
from fedplt.cutting.coupling import find_spaces, no_submodel, traced
from fedplt.cutting.find_layers import cut, example_model
from fedplt.cutting.layer_rules import Slicing, add_layer_kind
