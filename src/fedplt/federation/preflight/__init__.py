# mypy: implicit-reexport
"""Everything that is checked before a run: arguments, model, data, and one step of training."""

from __future__ import annotations

from fedplt.federation.preflight.arguments import (
    Values,
    as_list,
    check_arguments,
    checked_ratio,
    clients_section,
    described,
    method_section,
    task_section,
    values_of,
)
