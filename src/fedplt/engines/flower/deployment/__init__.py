# mypy: implicit-reexport
"""Files of a secure deployment on Flower, and checks of them on every machine."""

from __future__ import annotations

from fedplt.engines.flower.deployment.check import check_deployment
from fedplt.engines.flower.deployment.check_files import Finding
from fedplt.engines.flower.deployment.create import init_deployment
from fedplt.engines.flower.deployment.manifest import (
    MANIFEST,
    Address,
    Manifest,
    make_address,
    read_manifest,
)
