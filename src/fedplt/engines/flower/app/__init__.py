"""Flower apps with a user's own model, data and training loop."""
