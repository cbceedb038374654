"""Advice for a fleet: train every sensible strategy, and compare them by the fleet's clock.

It uses :mod:`fedplt`, which finds it by name only (``fedplt.advise``, ``fedplt advise``).
"""
