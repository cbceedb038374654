"""The paper's experiments as data: which contestants run in which settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedplt.errors import ConfigError, did_you_mean
from reproduction.settings import SETTINGS, Block, Contestant, Experiment


def _groups(*shares: tuple[float, float]) -> dict[str, Any]:
    return {"groups": [{"share": share, "ratio": ratio} for share, ratio in shares]}


def _given(
    name: str, label: str, ratios: tuple[float, ...], method: Mapping[str, Any], **sections: Any
) -> Contestant:
    clients = {"groups": [{"share": 1.0, "layer_ratios": list(ratios)}]}
    return Contestant(
        name,
        label,
        {"clients": clients, "method": {"name": "fedplt", **method}, **sections},
        ratios,
    )


_DYNAMICS = {"diagnostics": {"enabled": True}}
_FULL = _groups((1.0, 1.0))


def _fedavg(method: Mapping[str, Any]) -> Contestant:
    """Full training. All experiments share these runs, so they record diagnostics for the study."""
    sections = {"clients": _FULL, "method": {"name": "fedavg", **method}, **_DYNAMICS}
    return Contestant("fedavg", "FedAvg, full model", sections)


def _exp1(
    pair: str,
    ratio: float,
    allocations: Sequence[tuple[str, str, tuple[float, ...]]],
    method: Mapping[str, Any],
) -> Block:
    """All clients have the same ratio: a balanced allocation, and increasingly unbalanced ones."""
    balanced = Contestant(
        "balanced",
        "FedPLT, most balanced",
        {"clients": _groups((1.0, ratio)), "method": {"name": "fedplt", **method}},
    )
    others = [_given(name, f"FedPLT, {label}", q, method) for name, label, q in allocations]
    return Block("exp1", pair, SETTINGS[pair], (_fedavg(method), balanced, *others))


def _exp2(pair: str, ratio: float, method: Mapping[str, Any], sub: Mapping[str, Any]) -> Block:
    """10 % of the clients train everything, 30 % a medium part, 60 % only 6 %."""
    clients = _groups((0.1, 1.0), (0.3, ratio), (0.6, 0.06))

    def contestant(name: str, label: str, options: Mapping[str, Any], kind: str = "") -> Contestant:
        sections = {"clients": clients, "method": {"name": kind or name, **options}}
        return Contestant(name, label, sections)

    return Block(
        "exp2",
        pair,
        SETTINGS[pair],
        (
            _fedavg(method),
            contestant("fedplt", "FedPLT", method),
            contestant("fedpmt", "FedPMT", method),
            contestant("fedrolex", "FedRolex", sub),
            contestant("feddrop", "FedDrop", sub),
            contestant(
                "feddrop-unscaled", "FedDrop, no scaler", {**sub, "scaler": False}, "feddrop"
            ),
            contestant("heterofl", "HeteroFL", sub),
        ),
    )


def _exp3() -> Block:
    """Samplers with a budget of five clients, of five models, or with equal expected bytes."""
    contestants = [
        Contestant(
            "full-ocs",
            "full model, OCS",
            {"clients": _FULL, "method": {"name": "fedavg"}, "sampling": _by_norms("ocs")},
        ),
        Contestant(
            "full-uniform",
            "full model, uniform",
            {"clients": _FULL, "method": {"name": "fedavg"}, "sampling": _uniform(5)},
        ),
    ]
    # The number of clients that upload five whole models on average: 5 / 0.28 and 5 / 0.55.
    for fleet, ratio, number in (("low", 0.2, 18), ("moderate", 0.5, 9)):
        clients = _groups((0.1, 1.0), (0.9, ratio))
        samplings = (
            ("ocs", "original OCS, 5 clients", _by_norms("ocs")),
            ("aware", "FedPLT-aware OCS, 5 models", _by_norms("fedplt-ocs")),
            ("literal", "the paper's literal rule, 5 models", _by_norms("paper-ocs")),
            ("uniform", "uniform, 5 clients", _uniform(5)),
            ("ocs-equal", "original OCS, bytes of 5 models", _by_norms("ocs", match_budget=True)),
            (
                "literal-equal",
                "literal rule, bytes of 5 models",
                _by_norms("paper-ocs", match_budget=True),
            ),
            ("uniform-equal", f"uniform, {number} clients", _uniform(number)),
        )
        contestants += [
            Contestant(
                f"{fleet}-{name}",
                f"{fleet}: {label}",
                {"clients": clients, "method": {"name": "fedplt"}, "sampling": sampling},
            )
            for name, label, sampling in samplings
        ]
    return Block("exp3", "cifar-fcn", SETTINGS["cifar-fcn-sampling"], tuple(contestants))


def _by_norms(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "budget": 5.0, **options}


def _uniform(number: int) -> dict[str, Any]:
    return {"name": "uniform", "num_clients": number}


def _study(pair: str, method: Mapping[str, Any], deep: Any, shallow: Any, every: int = 1) -> Block:
    """``every``: evaluate after this many rounds."""
    sections = {**_DYNAMICS, "evaluation": {"every": every}}
    return Block(
        "study",
        pair,
        SETTINGS[pair],
        (
            _fedavg(method),
            _given("deep-heavy", "Deep-heavy", deep, method, **sections),
            _given("shallow-dominant", "Shallow-dominant", shallow, method, **sections),
        ),
    )


def _variant(
    experiment: str,
    pair: str,
    ratio: float,
    suffix: str,
    words: str,
    changed: Mapping[str, Any],
    method: Mapping[str, Any] | None = None,
) -> Block:
    """FedAvg and FedPLT of experiments 1 and 2 with one setting of the authors' public code."""
    fleets = (
        ("fedavg", "fedavg", "FedAvg", _FULL),
        ("balanced", "fedplt", f"FedPLT, all at {100 * ratio:.0f} %", _groups((1.0, ratio))),
        (
            "fedplt",
            "fedplt",
            "FedPLT, 10/30/60 %",
            _groups((0.1, 1.0), (0.3, ratio), (0.6, 0.06)),
        ),
    )
    return Block(
        experiment,
        pair,
        SETTINGS[pair],
        tuple(
            Contestant(
                f"{name}-{suffix}",
                f"{label}, {words}",
                {"clients": clients, "method": {"name": kind, **(method or {})}, **changed},
            )
            for name, kind, label, clients in fleets
        ),
    )


def _relu() -> Block:
    changed = {"model": {"options": {"relu_logits": True}}}
    return _variant("relu-logits", "fashion-fcn", 0.29, "relu", "ReLU on the logits", changed)


def _scaled(pair: str, ratio: float, method: Mapping[str, Any]) -> Block:
    """Inputs (x - 0.5) / 0.5, where ours are standardized by channel."""
    changed = {"data": {"scaling": "symmetric"}}
    words = "inputs from -1 to 1"
    return _variant("input-scaling", pair, ratio, "symmetric", words, changed, method)


_LOCAL = {"local_norms": True}
_STATIC = {"static_norm": True}
"""Clients that hold a part of the model cannot keep normalization layers for the rest. As in
HeteroFL they use batch statistics, and the server gathers running statistics to evaluate."""

EXPERIMENTS = {
    name: Experiment(name, title, {block.pair: block for block in blocks})
    for name, title, blocks in (
        (
            "study",
            "section III: which layers should a client train?",
            [
                _study("fashion-fcn", {}, (0.08, 0.68, 0.68, 1.0), (0.3, 0.1, 0.1, 1.0)),
                # The paper prints these rounded: (0.06, 0.06, 0.12, 0.42, 1).
                _study(
                    "cifar-resnet",
                    _LOCAL,
                    (1 / 16, 1 / 16, 1 / 8, 27 / 64, 1.0),
                    (1.0, 1.0, 0.5, 0.25, 1.0),
                    every=10,
                ),
            ],
        ),
        (
            "exp1",
            "experiment 1: all clients are weak alike",
            [
                _exp1(
                    "fashion-fcn",
                    0.29,
                    [
                        ("mild", "mildly unbalanced", (0.2, 0.45, 0.76, 0.8)),
                        ("moderate", "moderately unbalanced", (0.1, 0.73, 0.86, 0.9)),
                        ("large", "largely unbalanced", (0.25, 0.29, 0.78, 1.0)),
                        ("uniform-layers", "every layer alike", (0.29,) * 4),  # not in the paper
                    ],
                    {},
                ),
                _exp1(
                    "cifar-fcn",
                    0.23,
                    [
                        ("mild", "mildly unbalanced", (0.17, 0.81, 1.0, 1.0)),
                        ("large", "largely unbalanced", (0.2, 0.45, 0.76, 0.8)),
                        ("uniform-layers", "every layer alike", (0.23,) * 4),
                    ],
                    {},
                ),
                _exp1(
                    "cifar-resnet",
                    0.18,
                    [
                        ("mild", "mildly unbalanced", (0.75, 0.75, 0.25, 0.1, 1.0)),
                        ("large", "largely unbalanced", (0.5, 0.5, 0.25, 0.12, 1.0)),
                    ],
                    _LOCAL,
                ),
            ],
        ),
        (
            "exp2",
            "experiment 2: very unequal clients, all methods",
            [
                _exp2("fashion-fcn", 0.29, {}, {}),
                _exp2("cifar-fcn", 0.23, {}, {}),
                _exp2("cifar-resnet", 0.18, _LOCAL, _STATIC),
            ],
        ),
        ("exp3", "experiment 3: optimal client sampling", [_exp3()]),
        ("relu-logits", "the authors' code: a ReLU on the logits", [_relu()]),
        (
            "input-scaling",
            "the authors' code: inputs from -1 to 1",
            [_scaled("cifar-fcn", 0.23, {}), _scaled("cifar-resnet", 0.18, _LOCAL)],
        ),
    )
}


def find_blocks(
    experiment: str, pair: str | None = None, names: Sequence[str] | None = None
) -> list[Block]:
    """The blocks of an experiment, of all pairs or one, with all contestants or the named ones."""
    if experiment not in EXPERIMENTS:
        raise ConfigError(
            f"there is no experiment {experiment!r}. {did_you_mean(experiment, EXPERIMENTS)}"
        )
    blocks = EXPERIMENTS[experiment].blocks
    if pair is not None and pair not in blocks:
        raise ConfigError(f"--pair {pair}: {experiment} has {', '.join(blocks)}.")
    chosen = [block for block in blocks.values() if pair in (None, block.pair)]
    if names is None:
        return chosen
    known = {contestant.name for block in chosen for contestant in block.contestants}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--methods {name}: {experiment} has no such contestant. "
                f"{did_you_mean(name, sorted(known))}"
            )
    reduced = [
        Block(b.experiment, b.pair, b.setting, tuple(c for c in b.contestants if c.name in names))
        for b in chosen
    ]
    return [block for block in reduced if block.contestants]
