# mypy: implicit-reexport
"""Built-in models; build a model by name or import path, call it, and copy it."""

from __future__ import annotations

from fedplt.models.build import MODELS, ModelSpec, build_model, call_model, copy_model, model_mode
from fedplt.models.networks import ResNet8, TextTransformer, VisionTransformer, cnn, fcn
