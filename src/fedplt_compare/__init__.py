"""Train methods side by side, or strategies for a fleet, and recommend one.

This package uses :mod:`fedplt`, which loads it by name for ``fedplt.compare``, ``fedplt.advise``
and their commands.
"""
