"""Small jobs on images: every method on every built-in model of images."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from fedplt import cut
from fedplt.configuration.config_file import parse_config
from fedplt.cutting.coupling import find_spaces
from fedplt.data.samples import TensorSamples
from fedplt.data.training_data import TrainingData
from fedplt.federation.job import make_job
from fedplt.methods import METHODS, PlanRequest
from fedplt.models import MODELS, ResNet8, VisionTransformer, cnn, fcn
from tests.support.in_process import in_process
from tests.support.runs import final_state

SMALL = {
    "fcn": (lambda: fcn(num_inputs=64, hidden=(12, 8), num_classes=3), (1, 8, 8)),
    "cnn": (lambda: cnn(image_size=8, width=4, num_classes=3), (1, 8, 8)),
    "resnet8": (lambda: ResNet8(num_channels=1, num_classes=3), (1, 8, 8)),
    "vit": (
        lambda: VisionTransformer(8, 4, 1, width=8, depth=1, num_heads=2, num_classes=3),
        (1, 8, 8),
    ),
}
IMAGE_RATIOS = [1.0, 0.4, 0.4, 0.1]
TRAINS_SUBMODELS = [name for name, method in METHODS.items() if hasattr(method, "select_units")]


def images(number: int, seed: int) -> TensorSamples:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 3
    inputs = 0.5 * torch.randn(number, 1, 8, 8, generator=random)
    inputs[torch.arange(number), 0, 2 * labels] += 1  # a bright row tells the class
    return TensorSamples(inputs, labels)


def image_job(
    method: str, model: str, ratios=IMAGE_RATIOS, workers: int = 1, options=None, **settings
):
    torch.manual_seed(0)
    values = {
        "rounds": 2,
        "checkpoint_every": 1,
        "model": {"name": "small", "groups": dict(MODELS[model].groups)},
        "clients": {"num_clients": len(ratios)},
        "data": {"name": "images", "alpha": 1.0},
        "training": {"batch_size": 16, "learning_rate": 0.05},
        "engine": {"workers": workers, "check": False},
        **settings,
        "method": {"name": method, **(options or {})},
    }
    data = TrainingData(images(120, 0), images(30, 1))
    return make_job(parse_config(values), SMALL[model][0](), data, ratios=ratios)


def trained(*arguments, **options):
    """A job that was run, and its final tensors."""
    made = image_job(*arguments, **options)
    return made, final_state(made, engine=in_process)[1]


@cache
def reference(method: str, model: str, local_norms: bool = False) -> dict[str, Tensor]:
    """The final tensors of a job without settings: computed once, so only to compare with."""
    return trained(method, model, options={"local_norms": local_norms})[1]


def plan_request(model: str, ratios=IMAGE_RATIOS) -> PlanRequest:
    module, example = SMALL[model][0](), torch.zeros(2, *SMALL[model][1])
    layers = cut(module, example, groups=MODELS[model].groups)
    return PlanRequest(layers, ratios, find_spaces=lambda: find_spaces(module, layers, example))
