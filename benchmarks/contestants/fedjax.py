"""Google's FedJAX, compiled, all cores; needs ``fedjax`` and ``jax[cpu]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

jax.tree_map = jax.tree_util.tree_map  # fedjax 0.0.17 uses a name that JAX has since removed

import fedjax
import haiku
from fedjax.algorithms import fed_avg

from benchmarks.contestants import serve
from benchmarks.jobs import BATCH_SIZE, HIDDEN, LEARNING_RATE, NUM_CLIENTS, read


def network(batch: dict[str, Any]) -> Any:
    hidden = batch["x"]
    for width in HIDDEN:
        hidden = jax.nn.relu(haiku.Linear(width)(hidden))
    return haiku.Linear(10)(hidden)


def main() -> None:
    job = read(Path(sys.argv[1]))
    labels = job.labels.astype(np.int32)
    example = {"x": job.inputs[:1], "y": labels[:1]}
    model = fedjax.create_model_from_haiku(
        haiku.transform(network),
        example,
        lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], outputs),
        {"accuracy": fedjax.metrics.Accuracy()},
    )
    stretches = [slice(a, b) for a, b in zip(job.offsets[:-1], job.offsets[1:], strict=True)]
    data = fedjax.InMemoryFederatedData(
        {k: {"x": job.inputs[part], "y": labels[part]} for k, part in enumerate(stretches)}
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(LEARNING_RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=BATCH_SIZE, num_epochs=1, drop_remainder=False, seed=None
        ),
    )
    clients = list(data.clients())
    validation = fedjax.ClientDataset(
        {"x": job.validation_inputs, "y": job.validation_labels.astype(np.int32)}
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    random = jax.random.PRNGKey(1)

    def one_round() -> None:
        nonlocal state, random
        random, *keys = jax.random.split(random, NUM_CLIENTS + 1)
        chosen = [(name, client, key) for (name, client), key in zip(clients, keys, strict=True)]
        state, _ = algorithm.apply(state, chosen)
        batches = validation.padded_batch(batch_size=1000)
        float(fedjax.evaluate_model(model, state.params, batches)["accuracy"])

    serve(one_round)


if __name__ == "__main__":
    main()
