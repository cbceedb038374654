# mypy: implicit-reexport
"""Engines that run the clients."""

from __future__ import annotations

from fedplt.engines.by_name import engine_of
