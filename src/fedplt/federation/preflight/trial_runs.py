"""Quick trials before a run starts, so that errors are reported at once and not by a worker."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.client import OPTIMIZERS, LocalTraining, Task, TrainingConfig
from fedplt.configuration import RunConfig
from fedplt.data import Samples, TensorSamples, first_examples
from fedplt.errors import ConfigError, DataError
from fedplt.federation.preflight.data import (
    Parts,
    check_finite,
    check_shift,
    refuse_integers,
    with_checks,
)
from fedplt.models import MODELS, call_model, model_mode


def on_device(config: RunConfig) -> RunConfig:
    """The configuration with the device that ``auto`` stands for on this machine, checked."""
    device = config.engine.device
    if device == "auto":
        device = "mps" if torch.backends.mps.is_available() else "cpu"
        device = "cuda" if torch.cuda.is_available() else device
        engine = config.engine.model_copy(update={"device": device})
        config = config.model_copy(update={"engine": engine})
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        problem = f"{device!r} cannot be used here ({str(error).splitlines()[0]})."
        raise ConfigError(f"{problem} Use 'cpu' or 'auto'.", key="engine.device") from error
    return config


def uncompiled(model: nn.Module) -> nn.Module:
    """The module behind ``torch.compile``: kernels cannot replace compiled operations."""
    inner = getattr(model, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        warnings.warn(
            "the model is compiled (torch.compile); it is trained uncompiled, in place.",
            stacklevel=2,
        )
        model = inner
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            problem = f"{name or 'the model'} is compiled (torch.compile), which hides what is "
            do = "trained inside. Give the model uncompiled, and compile it after training."
            raise ConfigError(problem + do, key="model")
    return model


def try_model(config: RunConfig, model: nn.Module, inputs: Any, targets: Any, task: Task) -> None:
    """Run model, loss and metric on one small batch."""
    try_task(config, run_model(config, model, inputs), targets, task)


def try_data(
    config: RunConfig, model: nn.Module, parts: Parts, task: Task, *, ahead: bool = True
) -> tuple[dict[str, Samples], Any, Any]:
    """Run the model once on examples of each kind, to find mismatches early.

    Returns the data with Datasets that check each fetched item (with ``ahead`` the first ones are
    fetched here), and the inputs and outputs of a small batch.
    """
    for part, samples in parts.items():
        if not len(samples):
            raise DataError(f"the {part.removeprefix('the ')} is empty; it needs examples.")
    check_finite(parts)
    shown, targets = first_examples(parts.get("validation data", next(iter(parts.values()))))
    outputs = run_model(config, model, shown)
    for part, samples in parts.items():
        inputs, others = first_examples(samples)
        if kind_of(inputs) != kind_of(shown):  # the model may not accept both
            try_task(config, run_model(config, model, inputs, part), others, task)
    checked = with_checks(parts, outputs, task, ahead=ahead)
    check_shift(outputs, targets, task)
    try_task(config, outputs, targets, task)
    return checked, shown, outputs


def run_model(config: RunConfig, model: nn.Module, inputs: Any, part: str = "data") -> Any:
    """The model's outputs for one small batch."""
    try:
        with model_mode(model, training=False), torch.no_grad():
            return call_model(model, inputs)
    except Exception as error:  # the user's model may raise anything
        refuse_integers(model, inputs)
        raise ConfigError(
            f"model.name: {config.model.name!r} does not fit the {part} {config.data.name!r}, "
            f"whose inputs are {kind_of(inputs)}: {first_line(error)}. "
            + (_OPTIONS if config.model.name in MODELS else "Change the model or the data.")
        ) from error


def try_task(config: RunConfig, outputs: Any, targets: Any, task: Task) -> None:
    """Run loss and metric on a small batch of outputs."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Outputs (n, 1) and targets (n,) broadcast to (n, n): torch only warns.
            warnings.filterwarnings("error", "Using a target size")
            loss = task.loss(outputs, targets)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
                raise DataError(f"the loss gives {found:.60}, but a loss is a tensor of one number")
            task.metric.rows(outputs, targets, num_examples(targets))
    except Exception as error:  # the user's loss and metric may raise anything
        raise ConfigError(
            f"the loss or the metric of {task.name!r} fails on the outputs of "
            f"{config.model.name!r}, {kind_of(outputs)}, with targets of {kind_of(targets)}: "
            f"{first_line(error)}. Is it the right task? See [task] (fedplt.train: task=).",
            key="task",
        ) from error


def try_augment(training: LocalTraining, samples: Samples) -> None:
    """Augment one small batch."""
    if training.augment is None:
        return
    (inputs, _), key = first_examples(samples), "training.augment"
    try:
        changed = training.augment(inputs, torch.Generator().manual_seed(0))
    except Exception as error:  # the user's function may raise anything
        problem = f"it fails on inputs of {kind_of(inputs)}: {first_line(error)}. It is called "
        call = "with the inputs of a batch and a torch.Generator, and returns the inputs."
        raise ConfigError(problem + call, key=key) from error
    if type(changed) is not type(inputs):
        kinds = f"a {type(changed).__name__} for inputs that are a {type(inputs).__name__}"
        raise ConfigError(f"it gives {kinds}; it must return the changed inputs.", key=key)


def kind_of(inputs: Any) -> str:
    """Shapes and types of a batch, without the number of examples."""
    if isinstance(inputs, Mapping):
        return ", ".join(f"{key!r} {kind_of(value)}" for key, value in inputs.items())
    if isinstance(inputs, (tuple, list)):
        return ", ".join(map(kind_of, inputs))
    if not isinstance(inputs, Tensor):
        return f"a {type(inputs).__name__}"
    return f"shape {tuple(inputs.shape[1:])} ({str(inputs.dtype).removeprefix('torch.')})"


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [repr(error)])[0].rstrip(".")


def num_examples(targets: Any) -> int:
    while isinstance(targets, (dict, list, tuple)):
        targets = next(iter(targets.values() if isinstance(targets, dict) else targets))
    return len(targets)


_OPTIONS = (
    "Set model.options to fit (fcn: num_inputs; cnn: num_channels, image_size; resnet8: "
    "num_channels; vit: image_size, num_channels; text: vocabulary, context; all but text: "
    "num_classes)."
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
        with model_mode(model, training=False), torch.no_grad():
            model(converted)
    except RuntimeError:
        return False
    return True


def try_optimizer(settings: TrainingConfig) -> None:
    """One step with the options, on one number."""
    options = settings.optimizer_arguments
    if not options:  # making an optimizer imports torch's compiler, which takes a second
        return
    try:
        number = nn.Parameter(torch.zeros(1))
        optimizer = OPTIMIZERS[settings.optimizer]([number], lr=0.1, **options)
        number.grad = torch.ones(1)
        optimizer.step()
    except Exception as error:  # torch checks some options only when it steps
        given = f"{settings.optimizer} does not take {options}"
        problem = f"{given}: {error or type(error).__name__}"
        raise ConfigError(problem, key="training.optimizer_options") from error
