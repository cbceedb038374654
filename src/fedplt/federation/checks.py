"""Quick trials before a run starts, so that errors are reported at once and not by a worker."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.client import OPTIMIZERS, LocalTraining, Loss, Metric
from fedplt.data import Samples, TensorSamples
from fedplt.errors import ConfigError
from fedplt.federation.config import RunConfig
from fedplt.kernels import call_model, evaluation_mode
from fedplt.models import MODELS
from fedplt.text import bytes_text


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


def check_window(window: int, state_size: int) -> None:
    """Refuse diagnostics that would not fit into this machine's memory."""
    needed, there = 4 * window * state_size, physical_memory()
    if there is not None and needed > there:
        raise ConfigError(
            f"diagnostics.window: {window} copies of this model need {bytes_text(needed)}, but "
            f"this machine has {bytes_text(there)}. Set at most {there // (4 * state_size)}."
        )


def physical_memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def try_optimizer(training: LocalTraining) -> None:
    """One step with the options, on one number."""
    try:
        number = nn.Parameter(torch.zeros(1))
        optimizer = OPTIMIZERS[training.optimizer]([number], lr=0.1, **training.optimizer_options)
        number.grad = torch.ones(1)
        optimizer.step()
    except Exception as error:  # torch checks some options only when it steps
        raise ConfigError(
            f"training.optimizer_options: {training.optimizer} does not take "
            f"{training.optimizer_options}: {error or type(error).__name__}"
        ) from error
