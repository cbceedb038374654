"""Runs in the simulator, and what is the same about two of them."""

from __future__ import annotations

import torch

from fedplt.engines.start import run_job


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
