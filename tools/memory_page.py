"""The tables of memory in docs/fleet.md: counted, recorded by torch, and seen by the system.

python -m tools.memory_page

Every case is measured in a separate process: resident memory at its highest, minus that before
the training, plus the model and the update, after another training has loaded all code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

BATCH = 64
TOKENS = 32
CASES = ((1.0, False), (0.3, False), (0.06, False), (0.06, True))
MODELS = ("fcn", "resnet8", "vit", "text", "MiniLM")
PAGE = Path("docs/fleet.md")


def minilm() -> Any:
    """all-MiniLM-L6-v2 as examples/fine_tune trains it, with random weights."""
    import torch
    from transformers import BertConfig, BertModel

    class Sorter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = BertConfig(
                vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                intermediate_size=1536, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            )  # fmt: skip
            self.bert = BertModel(config, add_pooling_layer=False)
            self.head = torch.nn.Linear(384, 5)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            states = self.bert(input_ids, attention_mask).last_hidden_state
            mask = attention_mask.unsqueeze(-1).float()
            return self.head((states * mask).sum(1) / mask.sum(1))

    return Sorter()


def case(name: str, ratio: float, frozen: bool) -> tuple[Any, ...]:
    """Model, example, assignment and training."""
    import torch

    from fedplt import cut, make_plan
    from fedplt.client import LocalTraining
    from fedplt.client.tasks import next_token_loss
    from fedplt.cutting import example_model
    from fedplt.fleet import planned_share

    if name == "MiniLM":
        model, ones = minilm(), torch.ones(2, TOKENS, dtype=torch.long)
        example: Any = {"input_ids": ones, "attention_mask": ones}
        layers = cut(model, example)
    else:
        model, example, layers = example_model(name)
    share = planned_share(layers, ratio, len(layers) // 2 if frozen else 0)
    training = LocalTraining(loss=next_token_loss) if name == "text" else LocalTraining()
    return model, example, make_plan(layers, [share]).assignment(0), training


def resident(peak: bool = False) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM" if peak else "VmRSS"):
            return 1024 * int(line.split()[1])
    raise OSError("the system does not report resident memory")


def train(name: str, ratio: float, frozen: bool, batch: int) -> int:
    """The resident memory of three steps as a client takes them, at its highest."""
    import torch

    from fedplt.client.local_training import train_client
    from fedplt.client.training_memory import MemoryCounter
    from fedplt.data import TensorSamples

    model, example, assignment, training = case(name, ratio, frozen)
    (inputs, targets), loss = MemoryCounter(model, example, training)._batch(model, batch)
    update = torch.zeros(assignment.update_size)
    settings = replace(training, local_epochs=None, local_steps=3, batch_size=batch, loss=loss)
    samples = TensorSamples(inputs, targets)
    before = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    start = resident()
    train_client(
        model, assignment, samples, range(batch), settings,
        learning_rate=1e-3, seed=0, round=0, client=0,
    )  # fmt: skip
    return resident(peak=True) - start + before + 4 * len(update)


def measure(name: str, ratio: float, frozen: bool) -> None:
    """Print what is counted, recorded and seen, as JSON; runs in a separate process."""
    import gc

    import torch

    from fedplt.client.training_memory import MemoryCounter

    torch.set_num_threads(1)
    model, example, assignment, training = case(name, ratio, frozen)
    counter = MemoryCounter(model, example, training)
    counted = counter.memory(assignment, BATCH)
    recorded = counter.measure(assignment, BATCH)
    del model, counter
    gc.collect()
    train(name, ratio, frozen, BATCH)  # loads all code
    gc.collect()
    seen = train(name, ratio, frozen, BATCH)
    parts = {**counted.parts(), "recorded": recorded, "resident": seen}
    print(json.dumps({**parts, "saved": dict(counted.saved)}))


def main() -> None:
    # Freed memory returns to the system at once, so that the system sees what is held.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "0"}
    shown = ("weights", "update", "activations", "peak", "recorded", "resident")
    lines = [
        "| model | trains | " + " | ".join(("weights", "update", "activations", "**counted peak**",
        "torch's allocator", "resident")) + " | off by |",
        "|---|---|" + "---:|" * 7,
    ]  # fmt: skip
    for name in MODELS:
        for ratio, frozen in CASES:
            command = [
                sys.executable,
                "-m",
                "tools.memory_page",
                name,
                str(ratio),
                str(int(frozen)),
            ]
            run = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            found = json.loads(run.stdout.splitlines()[-1])
            off = max(abs(found["peak"] / found[key] - 1) for key in ("recorded", "resident"))
            what = f"ratio {ratio:g}" + (", first half frozen" if frozen else "")
            cells = " | ".join(f"{found[key] / 1e6:.2f}" for key in shown)
            lines.append(f"| {name} | {what} | {cells} | {100 * off:.1f} % |")
            print(lines[-1], flush=True)
    text = PAGE.read_text()
    head, _, rest = text.partition("<!-- memory: python -m tools.memory_page -->\n")
    _, _, tail = rest.partition("<!-- end of memory -->\n")
    marked = "\n".join(
        ["<!-- memory: python -m tools.memory_page -->", *lines, "<!-- end of memory -->", ""]
    )
    PAGE.write_text(head + marked + tail)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], float(sys.argv[2]), bool(int(sys.argv[3])))
    else:
        main()
