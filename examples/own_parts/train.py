"""Compare a custom method with FedPLT, on a network with a custom layer.

python -m examples.own_parts.train [FOLDER_FOR_THE_RUNS]
"""

import sys

import torch

import fedplt
from examples.digits import digits
from examples.own_parts.maxout import Maxout

RATIOS = [1.0] * 2 + [0.3] * 6 + [0.1] * 12


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(Maxout(64, 64, 4), Maxout(64, 32, 4), torch.nn.Linear(32, 10))


def main() -> None:
    train, validation = digits()
    print(fedplt.cut(network(), train[0][:8]).summary(), end="\n\n")
    report = fedplt.check(network(), train[0][:8])  # against full gradients times mask
    print(f"slices are trained as full training would: {report.verdict}\n")
    for method in ("fedplt", "examples.own_parts.uniform:Uniform"):
        history = fedplt.train(
            network(),
            train,
            validation,
            ratios=RATIOS,
            split="dirichlet",
            rounds=60,
            method=method,
            training={"learning_rate": 0.1, "batch_size": 16},
            out=f"{sys.argv[1]}/{method.split(':')[-1].lower()}" if sys.argv[1:] else None,
        )
        score = history.metric.text(history.final_score())
        megabytes = history.rounds[-1].total.bytes_up / 1e6
        print(f"{method}: {score} (mean of the last ten rounds), {megabytes:.1f} MB uploaded")


if __name__ == "__main__":
    main()
