"""Train methods side by side, or strategies for a fleet, and say which one to take.

It uses :mod:`fedplt`, which finds it by name only: ``fedplt.compare``, ``fedplt.advise`` and their
commands.
"""
