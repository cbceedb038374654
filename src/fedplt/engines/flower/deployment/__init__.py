# mypy: implicit-reexport
"""Files of a secure deployment on Flower, and checks of them on every machine."""

from __future__ import annotations

from fedplt.engines.flower.deployment.address import Address, make_address
from fedplt.engines.flower.deployment.check import check_deployment
from fedplt.engines.flower.deployment.findings import Finding
from fedplt.engines.flower.deployment.record import Record, read_record
from fedplt.engines.flower.deployment.write import init_deployment
