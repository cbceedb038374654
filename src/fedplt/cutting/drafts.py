"""Find what becomes a layer in a torch module: modules with tensors to train, and how they are cut.

What is not trained (frozen, unused, asked for) is named with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from fedplt.cutting.patterns import Patterns, first_match, match_all
from fedplt.cutting.rules import Slicing, check_tensor, kind_of, slicing_of
from fedplt.cutting.trace import NORMS, Trace
from fedplt.errors import CutError
from fedplt.kernels import forward_of
from fedplt.planning.flow import About
from fedplt.planning.layers import TensorSpec, dotted

ROOT = "model"
"""The name of the model itself, where it has tensors of its own."""
RUNNING_STATISTICS = ("running_mean", "running_var")

Aliases = dict[str, str]
"""Names of modules that are part of another's layer: tied weights, norms, groups."""


@dataclass
class Member:
    """What becomes a layer, or a part of one."""

    tensors: list[TensorSpec] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    """Of each tensor: the pieces it could be cut into."""
    kinds: list[str] = field(default_factory=list)
    how: list[str] = field(default_factory=list)

    def join(self, other: Member) -> None:
        self.tensors += other.tensors
        self.units += other.units
        self.kinds += [kind for kind in other.kinds if kind not in self.kinds]
        self.how += [how for how in other.how if how not in self.how]

    @property
    def is_stretched(self) -> bool:
        return any(tensor.repeats > 1 for tensor in self.tensors)


def find_members(
    model: nn.Module, seen: Sequence[Trace], never: Patterns, fused: Mapping[str, int]
) -> tuple[dict[str, Member], Aliases, list[About]]:
    """All modules with tensors to train by name, other names of theirs, and what is left out."""
    used = set().union(*(trace.used() for trace in seen)) if seen else None
    members: dict[str, Member] = {}
    aliases: Aliases = {}
    left_out: list[About] = []
    home: dict[int, str] = {}  # parameter -> the member it belongs to
    names = [name for name, _ in model.named_modules()] + [n for n, _ in model.named_parameters()]
    never_trained = match_all("never", never, names)
    match_all("fused", list(fused), names)
    for name, module in model.named_modules():
        own: dict[str, nn.Parameter] = {}
        tied: str | None = None
        for key, parameter in module.named_parameters(recurse=False):
            full = dotted(name, key)
            if id(parameter) in home:
                tied = home[id(parameter)] or tied
                if tied and {name, full} & never_trained:
                    raise CutError(
                        f"never: {full} is tied to a tensor of {tied!r}, which is trained. "
                        "Name that layer, too."
                    )
                continue
            why = _why_not(parameter, {name, full} & never_trained, used)
            if why:
                home[id(parameter)] = ""
                left_out.append(About(full, kind_of(module), why, parameter.numel(), False))
            else:
                check_tensor(full, parameter)
                own[key] = parameter
        statistics = [] if name in never_trained else _running_statistics(name, module)
        if tied and not own and not statistics:
            members[tied].how.append(f"with {name} (tied)")
            aliases[name] = tied
        frozen = not tied and next(module.parameters(recurse=False), None) is not None
        _check_statistics(name, module)
        if not own and (not statistics or frozen):
            continue  # a norm without parameters has statistics to share; a frozen one stays as is
        slicing = slicing_of(name, module, own, first_match(name, fused))
        if tied:
            slicing = replace(slicing, how=f"with {name} (tied)")
            aliases[name] = tied
        for home_name, member in _made(name, module, own, statistics, slicing):
            target = tied or home_name
            members.setdefault(target, Member()).join(member)
            home.update({id(own[key]): target for key in own})
    unused = [about.name for about in left_out if about.how == _NOT_USED]
    if unused:
        warnings.warn(
            f"not trained, because the example input does not use them: {', '.join(unused)}. If "
            "other inputs do, give an example that does.",
            stacklevel=3,
        )
    return members, aliases, left_out


_NOT_USED = "not trained: the example input does not use it"


def _why_not(parameter: nn.Parameter, never: set[str], used: set[int] | None) -> str | None:
    if not parameter.requires_grad:
        return "not trained: frozen (requires_grad is False)"
    if never:
        return "not trained: never, as asked for"
    return _NOT_USED if used is not None and id(parameter) not in used else None


def _made(
    name: str,
    module: nn.Module,
    own: Mapping[str, nn.Parameter],
    statistics: list[TensorSpec],
    slicing: Slicing,
) -> list[tuple[str, Member]]:
    """One member, or one for each bare parameter of a module of an unknown kind."""
    kind = kind_of(module)
    specs = {
        key: TensorSpec(
            dotted(name, key),
            tuple(parameter.shape),
            slicing.axes.get(key, 0),
            slicing.repeats.get(key, 1),
        )
        for key, parameter in own.items()
    }
    if slicing.is_bare:
        return [
            (spec.name, Member([spec], [1], ["Parameter"], [slicing.how]))
            for spec in specs.values()
        ]
    tensors = [*specs.values(), *statistics]
    units = [slicing.num_units or tensor.width for tensor in tensors]
    outer = name.partition(".parametrizations.")[0]  # a parametrized module's own tensors
    outer = "" if name.startswith("parametrizations.") else outer
    return [(outer or ROOT, Member(tensors, units, [kind], [slicing.how]))]


def _check_statistics(name: str, module: nn.Module) -> None:
    if getattr(module, "running_mean", None) is None or not isinstance(module, NORMS):
        return
    if forward_of(module) is None:
        raise CutError(
            f"module {name!r} ({type(module).__name__}) keeps running statistics in a forward of "
            "its own, so those of untrained channels would move too. Use the usual norm of torch, "
            "or track_running_stats = False."
        )


def _running_statistics(name: str, module: nn.Module) -> list[TensorSpec]:
    if not isinstance(module, NORMS):
        return []
    return [
        TensorSpec(dotted(name, key), tuple(buffer.shape), is_buffer=True)
        for key, buffer in module.named_buffers(recurse=False)
        if key in RUNNING_STATISTICS
    ]


def local_buffers(model: nn.Module, named: set[str]) -> list[About]:
    """Buffers that are saved with the model but belong to no layer."""
    saved = model.state_dict(keep_vars=True)
    return [
        About(name, "buffer", _why_local(name), buffer.numel(), False)
        for name, buffer in model.named_buffers()
        if name in saved and name not in named and not name.endswith("num_batches_tracked")
    ]


def _why_local(name: str) -> str:
    if name.rpartition(".")[2] in RUNNING_STATISTICS:
        return "stays as it is: nothing of its norm is trained"
    return "stays local: put back after each client"


def check_storage(model: nn.Module) -> None:
    """Two parameters in the same memory would be untied in silence."""
    places: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.numel():
            other = places.setdefault(parameter.data_ptr(), name)
            if other != name:
                raise CutError(
                    f"{name} and {other} are two parameters in the same memory. Tie them by "
                    "assigning the very same nn.Parameter, or give each its own copy."
                )
