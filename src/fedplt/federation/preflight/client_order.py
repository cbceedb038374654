"""Refuse a model, loss or Dataset whose state makes results depend on the order of clients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from fedplt.client import ClientTrainer, TrainOrder
from fedplt.data import TensorSamples
from fedplt.errors import CutError
from fedplt.federation.job import Job
from fedplt.kernels import has_own_forward, read_state
from fedplt.models import copy_model
from fedplt.torch_internals import has_hooks

KNOWN_PACKAGES = ("torch", "fedplt")
"""Modules, losses and augmentations from here keep no state between clients."""
MAX_BATCH = 64


def refuse_order(job: Job) -> None:
    """Train two clients for a step in both orders; refuse a model whose updates then differ.

    Workers train clients in any order, and a resumed run starts with a new process. State that
    survives from client to client outside of the model's parameters and buffers would make results
    depend on the order. Other errors are left to the run, which says where they occur.
    """
    clients = [client for client, number in enumerate(job.num_examples) if number]
    one, other = _order(job, clients[0], 0), _order(job, clients[-1], len(clients) == 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            first, second = _updates(job, (one, other)), _updates(job, (other, one))[::-1]
    except Exception:
        return
    finally:
        torch.set_num_threads(threads)
    if first != second:
        raise CutError(
            f"the updates of clients {one.client} and {other.client} depend on which of them is "
            "trained first: the model, the Dataset, the loss or the augmentation keeps a counter, "
            "an activation, or a torch or numpy Generator from call to call. Keep counters and "
            "activations in buffers (register_buffer), which are put back after every client, and "
            "draw from torch, random or numpy.random themselves, which are seeded for each client. "
            "If results may depend on the order, switch the check off with engine.check = false."
        )


def _order(job: Job, client: int, round: int) -> TrainOrder:
    training = job.training_of(client)
    size = training.settings.batch_of(MAX_BATCH)
    return TrainOrder(
        client=client, round=round, seed=job.config.seed,
        assignment=job.plan.assignment(client, round),
        training=training.with_settings(local_epochs=None, local_steps=1, batch_size=size),
        learning_rate=job.learning_rate(client, round),
    )  # fmt: skip


def _updates(job: Job, orders: Sequence[TrainOrder], *, put_back: bool = False) -> list[bytes]:
    """The updates of clients trained one after another with one new copy of the model.

    ``put_back``: attributes are reset between them, as in a run.
    """
    model = copy_model(job.model)
    trainer = ClientTrainer(
        model, job.layers, read_state(job.model, job.layers), job.plan.local_index
    )
    if not put_back:
        trainer.attributes.clear()
    updates = []
    for order in orders:
        trainer.refresh()
        update = torch.empty(order.assignment.update_size)
        trainer.train(order, job.samples, job.examples(order.client), update)
        updates.append(update.numpy().tobytes())
    return updates


def keeps_nothing(job: Job) -> bool:
    """Whether everything that a client computes with is known to keep no state."""
    functions = [job.training.loss, job.training.augment]
    return (
        isinstance(job.samples, TensorSamples)
        and all(function is None or _is_known(function) for function in functions)
        and all(
            _is_known(type(module)) and not has_own_forward(module) and not has_hooks(module)
            for module in job.model.modules()
        )
    )


def _is_known(thing: Any) -> bool:
    return getattr(thing, "__module__", "").partition(".")[0] in KNOWN_PACKAGES
