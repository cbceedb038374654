"""Apple's pfl-research, torch backend, one process with two threads; needs ``pfl``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.contestants import wait_for_request
from benchmarks.contestants.plain import evaluate, make_model
from benchmarks.jobs import BATCH_SIZE, LEARNING_RATE, NUM_CLIENTS, read


class Network(nn.Module):
    """What pfl wants of a model."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.layers = make_model(num_inputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Any]:
        return {}


def main() -> None:
    torch.set_num_threads(2)
    data = read(Path(sys.argv[1]))
    x, y = torch.from_numpy(data.inputs), torch.from_numpy(data.labels)
    validation = (
        torch.from_numpy(data.validation_inputs).split(1000),
        torch.from_numpy(data.validation_labels).split(1000),
    )
    network = Network(data.num_inputs)
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))

    def client(number: int) -> PyTorchTensorDataset:
        start, stop = int(data.offsets[number]), int(data.offsets[number + 1])
        order = start + torch.randperm(stop - start)  # pfl does not shuffle
        return PyTorchTensorDataset((x[order], y[order]), user_id=str(number))

    class Rounds(TrainingProcessCallback):
        started = 0.0

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            evaluate(network, *validation)
            seconds = time.perf_counter() - self.started if self.started else None
            if not wait_for_request(seconds):
                os._exit(0)
            self.started = time.perf_counter()
            return False, Metrics()

    users = FederatedDataset(client, get_user_sampler("minimize_reuse", list(range(NUM_CLIENTS))))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**9,
            train_cohort_size=NUM_CLIENTS,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=LEARNING_RATE, local_num_epochs=1, local_batch_size=BATCH_SIZE
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[Rounds()],
    )


if __name__ == "__main__":
    main()
