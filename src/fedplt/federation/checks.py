"""Quick trials before a run starts, so that errors are reported at once and not by a worker."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedplt.client import OPTIMIZERS, LocalTraining, Loss, Metric
from fedplt.data import Samples, TensorSamples
from fedplt.errors import ConfigError
from fedplt.federation.config import RunConfig
from fedplt.kernels import call_model, evaluation_mode
from fedplt.models import MODELS


def check_device(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"engine.device: {device!r} cannot be used here ({reason}). Use 'cpu'."
        ) from error


def try_model(
    config: RunConfig, model: nn.Module, inputs: Any, targets: Any, loss: Loss, metric: Metric
) -> Any:
    """Run model, loss and metric on one small batch and return the outputs."""
    try:
        with evaluation_mode(model), torch.no_grad():
            outputs = call_model(model, inputs)
            loss(outputs, targets)
            metric(outputs, targets)
            return outputs
    except Exception as error:  # the user's model, loss and metric may raise anything
        shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ConfigError(
            f"model.name: {config.model.name!r} does not fit the data {config.data.name!r}, whose "
            f"inputs have shape {shape}: {(str(error).splitlines() or [repr(error)])[0]}. "
            + (_OPTIONS if config.model.name in MODELS else _LOSS)
        ) from error


_OPTIONS = (
    "Set model.options to fit (fcn: num_inputs; cnn: num_channels, image_size; resnet8: "
    "num_channels; vit: image_size, num_channels; text: vocabulary, context; all but text: "
    "num_classes)."
)
_LOSS = (
    "The model, the loss and the metric must fit the data; from Python, fedplt.train takes loss= "
    "and metric= of your own."
)


def check_labels(train: Samples, outputs: Any) -> None:
    """Refuse labels without a model output; checks only data that is in memory."""
    if not isinstance(train, TensorSamples) or getattr(outputs, "ndim", 0) != 2:
        return
    if train.targets.ndim == 1 and not train.targets.is_floating_point():
        largest, number = int(train.targets.max()), outputs.shape[1]
        if largest >= number:
            raise ConfigError(
                f"model.options: the model has {number} outputs, but training labels go up to "
                f"{largest}. It needs at least {largest + 1} outputs."
            )


def likes_channels_last(model: nn.Module, inputs: Any) -> bool:
    """Whether the model runs on channels-last inputs, which are faster for convolutions.

    A model that calls ``.view`` on its activations may need the default memory layout.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return False
    if not isinstance(inputs, Tensor) or inputs.ndim != 4:
        return False
    everything = torch.arange(len(inputs))
    converted, _ = TensorSamples(inputs, everything).with_channels_last().batch(everything)
    try:
        with evaluation_mode(model), torch.no_grad():
            model(converted)
    except RuntimeError:
        return False
    return True


def try_optimizer(training: LocalTraining) -> None:
    try:
        OPTIMIZERS[training.optimizer](
            [nn.Parameter(torch.zeros(1))], lr=0.1, **training.optimizer_options
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"training.optimizer_options: {training.optimizer} does not take "
            f"{training.optimizer_options}: {error}"
        ) from error
