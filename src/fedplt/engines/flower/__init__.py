"""Federations on Flower."""
