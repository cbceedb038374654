# mypy: implicit-reexport
"""From a torch module to the layers that are planned: which parts it has and how they are cut."""

from __future__ import annotations

from fedplt.cutting.channels import channels_from
from fedplt.cutting.coupling import find_spaces
from fedplt.cutting.example import example_model
from fedplt.cutting.find_layers import cut
from fedplt.cutting.graph import no_submodel, traced
from fedplt.cutting.slicing import Slicing, add_layer_kind
