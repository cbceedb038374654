"""Runs in the simulator, and what is the same about two of them."""

from __future__ import annotations

import torch

from fedplt import federation
from fedplt.engines import engine_of


def run_job(job, out=None, *, engine=None, **options):
    """On the engine that its configuration names, unless one is given."""
    engine = engine or engine_of(job.config)
    return federation.run_job(job, out, engine=engine, **options)


def final_state(job, folder=None, **options):
    """The history, and the model's tensors after the last round."""
    history = run_job(job, folder, **options)
    tensors = {name: value.clone() for name, value in job.model.state_dict().items()}
    return history, tensors


def same(one, two):
    """To the bit."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def without_time(history):
    return [{**record.to_json(), "seconds": 0} for record in history.rounds]
