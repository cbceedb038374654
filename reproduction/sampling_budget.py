"""How much of its budget the low fleet of experiment 3 uploads under the original OCS.

``python -m reproduction.sampling_budget`` trains the first rounds of seed 1 with three
allocations and writes ``results/exp3/uploads.json`` (errata, 12). It takes minutes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fedplt
from fedplt.files import write_text
from reproduction.catalog import EXPERIMENTS

FILE = Path(__file__).parents[1] / "results" / "exp3" / "uploads.json"
BUDGET, ROUNDS = 5.0, 3
WEAK = {"share": 0.9, "ratio": 0.2}
RELU = {"name": "fcn", "options": {"num_inputs": 3072, "relu_logits": True}}


def shares(weak: Mapping[str, Any], **sections: Any) -> list[float]:
    """By round, the expected upload in whole models over the budget of five."""
    block = EXPERIMENTS["exp3"].blocks["cifar-fcn"]
    contestant = next(c for c in block.contestants if c.name == "low-ocs")
    values = block.config(contestant, ROUNDS, seed=1).model_dump(exclude_unset=True)
    values["clients"]["groups"] = [{"share": 0.1, "ratio": 1.0}, dict(weak)]
    values["data"]["scaling"] = "symmetric"
    history = fedplt.run({**values, **sections}, verbose=False)
    ratios = np.repeat([1.0, 0.2], [10, 90])
    found = []
    for record in history.rounds:
        assert record.sampling is not None
        found.append(round(float(record.sampling["probabilities"] @ ratios) / BUDGET, 3))
    return found


if __name__ == "__main__":
    every = {"share": 0.9, "layer_ratios": [0.2] * 4}
    by_allocation = {
        "balanced allocation": shares(WEAK),
        "20 % of every layer": shares(every),
        "20 % of every layer, ReLU on the logits": shares(every, model=RELU),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in by_allocation.items()]
    setting = (
        "low fleet of exp3, seed 1, inputs from -1 to 1, original OCS with a budget of 5 clients"
    )
    write_text(
        FILE,
        f'{{\n "setting": {json.dumps(setting)},\n "share_of_budget_by_round": {{\n'
        + ",\n".join(lines)
        + "\n }\n}\n",
    )
