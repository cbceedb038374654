"""Engines that run the clients."""

from __future__ import annotations

from fedplt.engines.by_name import engine_of

__all__ = ["engine_of"]
