"""Draft the layers of a torch module: which tensors stand together, and how they are cut.

The second pass over a model, after :mod:`fedplt.cutting.ownership`. Every module with tensors of
its own becomes a draft; a module that is tied to another joins that one's draft.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fedplt.cutting.ownership import ROOT, ModuleTensors
from fedplt.cutting.rules import Slicing, kind_of, slicing_of
from fedplt.errors import CutError, did_you_mean
from fedplt.planning import TensorSpec, dotted

Patterns = str | Sequence[str]
T = TypeVar("T")


def matches(name: str, pattern: str) -> bool:
    """
    >>> matches("blocks.0.mlp", "blocks.*"), matches("blocks.0.mlp", "blocks.0"), matches("a", "b")
    (True, True, False)
    """
    return fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def match_all(what: str, patterns: Patterns, names: Iterable[str]) -> set[str]:
    """All names that some pattern matches; an error for a pattern that matches none."""
    names = list(names)
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matching = {name for name in names if matches(name, pattern)}
        if not matching:
            raise CutError(f"{what}: no layer matches {pattern!r}. {did_you_mean(pattern, names)}")
        found |= matching
    return found


def first_match(name: str, values: Mapping[str, T]) -> T | None:
    """The value of the first pattern that matches the name."""
    return next((value for pattern, value in values.items() if matches(name, pattern)), None)


Aliases = dict[str, list[str]]
"""Module -> the layers that it is a part of: tied weights, normalization layers, groups."""


@dataclass
class LayerDraft:
    """Tensors that become a layer, or a part of one."""

    tensors: list[TensorSpec] = field(default_factory=list)
    num_pieces: list[int] = field(default_factory=list)
    """Into how many equal pieces each tensor can be cut."""
    kinds: list[str] = field(default_factory=list)
    """Kinds of the modules that the tensors come from."""
    how: list[str] = field(default_factory=list)
    """How it is cut, for people."""

    def join(self, other: LayerDraft) -> None:
        self.tensors += other.tensors
        self.num_pieces += other.num_pieces
        self.kinds += [kind for kind in other.kinds if kind not in self.kinds]
        self.how += [how for how in other.how if how not in self.how]

    @property
    def is_statistics(self) -> bool:
        """It has running statistics and no parameters."""
        return all(tensor.is_buffer for tensor in self.tensors)

    @property
    def has_blocks(self) -> bool:
        """Some tensor's rows are several blocks that are cut alike (a fused projection)."""
        return any(tensor.repeats > 1 for tensor in self.tensors)


@dataclass
class Drafts:
    """All drafts of a model."""

    by_name: dict[str, LayerDraft] = field(default_factory=dict)
    aliases: Aliases = field(default_factory=dict)
    home: dict[str, str] = field(default_factory=dict)
    """Tensor -> the draft that it is in."""

    def add(self, name: str, draft: LayerDraft) -> None:
        """Add a draft, or join it to the one of this name."""
        self.by_name.setdefault(name, LayerDraft()).join(draft)
        self.home.update({tensor.name: name for tensor in draft.tensors})

    def tie(self, module: str, name: str) -> None:
        """Note that a module shares parameters with the draft of this name."""
        self.by_name[name].how.append(f"with {module} (tied)")
        self.aliases.setdefault(module, []).append(name)


def find_drafts(modules: Iterable[ModuleTensors], fused: Mapping[str, int]) -> Drafts:
    """Drafts of all modules that have tensors in a layer, in the order of the modules."""
    drafts = Drafts()
    for module in modules:
        tied_to = list(dict.fromkeys(drafts.home[name] for name in module.tied_to))
        slicing = _slicing(module, fused)
        if slicing is not None and slicing.is_bare:
            # Each parameter is a layer of its own, also where others of the module are tied.
            for tensor in _trained_tensors(module, slicing):
                drafts.add(tensor.name, LayerDraft([tensor], [1], ["Parameter"], [slicing.how]))
        elif slicing is not None:
            draft = _draft(module, slicing)
            draft.how = [] if tied_to else draft.how
            drafts.add(tied_to[-1] if tied_to else _layer_name(module.name), draft)
        for name in tied_to:
            drafts.tie(module.name, name)
    return drafts


def _slicing(module: ModuleTensors, fused: Mapping[str, int]) -> Slicing | None:
    """How the module's own tensors are cut; None where it has none."""
    if not module.trained and not module.statistics:
        return None
    num_blocks = first_match(module.name, fused)
    return slicing_of(module.name, module.module, module.trained, num_blocks)


def _draft(module: ModuleTensors, slicing: Slicing) -> LayerDraft:
    tensors = [*_trained_tensors(module, slicing), *module.statistics]
    num_pieces = [slicing.num_units or tensor.width for tensor in tensors]
    return LayerDraft(tensors, num_pieces, [kind_of(module.module)], [slicing.how])


def _trained_tensors(module: ModuleTensors, slicing: Slicing) -> list[TensorSpec]:
    return [
        TensorSpec(
            dotted(module.name, key),
            tuple(parameter.shape),
            slicing.axes.get(key, 0),
            slicing.repeats.get(key, 1),
        )
        for key, parameter in module.trained.items()
    ]


def _layer_name(module: str) -> str:
    """A parametrization's tensors belong to the layer of the module that it parametrizes.

    >>> _layer_name("blocks.0"), _layer_name("fc.parametrizations.weight"), _layer_name("")
    ('blocks.0', 'fc', 'model')
    """
    if module.startswith("parametrizations."):
        return ROOT
    return module.partition(".parametrizations.")[0] or ROOT
