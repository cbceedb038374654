"""Is a training step as fast as it was? Compares this tree with a commit, interleaved.

    python tools/step_times.py --base REV [--models fcn resnet8] [--passes 15]

The trees run in separate processes and are asked in turn to train a client for a few steps, as
a run does it, at several ratios; shown are the medians and the median ratio of the passes (new /
old). Stop what else runs on the machine first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODELS = ("fcn", "resnet8", "vit", "text")
RATIOS = (1.0, 0.25, 0.06)
STEPS = {"fcn": 40, "resnet8": 4, "vit": 4, "text": 4}
BATCH = {"fcn": 64, "resnet8": 64, "vit": 32, "text": 16}


def serve() -> None:
    """Answer requests on standard input: a model and a ratio; seconds per step."""
    import torch

    import fedplt
    from fedplt import TrainingConfig
    from fedplt.client.local_training import LocalTraining, train_client
    from fedplt.models import MODELS as BUILT_IN
    from fedplt.models import build_model

    torch.set_num_threads(1)
    ready: dict[str, Any] = {}
    for line in sys.stdin:
        name, ratio = json.loads(line)
        if name not in ready:
            model = build_model(name, {}, 0)
            example = BUILT_IN[name].example()
            inputs = example[:1].repeat(4 * BATCH[name], *[1] * (example.ndim - 1))
            if inputs.is_floating_point():
                inputs = torch.randn(inputs.shape)
            with torch.no_grad():
                outputs = model(inputs)
            targets = torch.randint(outputs.shape[1], (len(inputs), *outputs.shape[2:]))
            layers = fedplt.cut(model, example, groups=BUILT_IN[name].groups)
            ready[name] = model, layers, Examples(inputs, targets)
        model, layers, examples = ready[name]
        plan = fedplt.make_plan(layers, [ratio] * 3)
        assignment = plan.assignment(1) if hasattr(plan, "assignment") else plan.client(1)
        for steps in (1, STEPS[name]):  # the first is a warm-up
            values = {"local_steps": steps, "batch_size": BATCH[name]}
            if "settings" in LocalTraining.__dataclass_fields__:
                settings = LocalTraining(TrainingConfig(**values))
            else:  # an earlier commit
                settings = LocalTraining(**values)
            started = time.thread_time()  # other load on the machine counts less
            train_client(
                model, assignment, examples, range(len(examples)), settings,
                learning_rate=1e-4, seed=0, round=1, client=1,
            )  # fmt: skip
            seconds = (time.thread_time() - started) / steps
        print(json.dumps(seconds), flush=True)


class Examples:
    """Tensors of inputs and targets, as clients of both trees take them."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Any) -> tuple[Any, Any]:
        return self.inputs[indices], self.targets[indices]


class Tree:
    """One source tree, in a separate process."""

    def __init__(self, source: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def ask(self, name: str, ratio: float) -> float:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([name, ratio]) + "\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="HEAD")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        git = ["git", "-C", str(ROOT)]
        subprocess.run(
            [*git, "worktree", "add", "-q", "--detach", str(base), options.base], check=True
        )
        try:
            old, new = Tree(base / "src"), Tree(ROOT / "src")
            print("model    ratio  old ms  new ms  new / old (median of passes)")
            for name in options.models:
                for ratio in RATIOS:
                    pairs = []
                    for index in range(options.passes):  # who is first changes from pass to pass
                        first, second = (old, new) if index % 2 else (new, old)
                        times = {id(tree): tree.ask(name, ratio) for tree in (first, second)}
                        pairs.append((times[id(old)], times[id(new)]))
                    before, after = (
                        statistics.median(column) for column in zip(*pairs, strict=True)
                    )
                    middle = statistics.median(b / a for a, b in pairs)
                    times_text = f"{1e3 * before:7.2f} {1e3 * after:7.2f}"
                    print(f"{name:8} {ratio:5.2f} {times_text}  {middle:.3f}", flush=True)
            old.process.terminate()
            new.process.terminate()
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(base)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
