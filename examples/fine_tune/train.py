"""Fine-tune a pretrained transformer (MiniLM) on 20 unequal devices to sort news articles.

python -m examples.fine_tune.train [FOLDER_FOR_THE_RUNS]
"""

import sys

import peft
import torch

import fedplt
from examples.fine_tune.news import NewsSorter, articles

KINDS = {1.0: 4, 0.3: 8, 0.05: 8}  # ratios, and how many devices have them
ROUNDS = 8
TOKENS = 32
HEAD = {"always": ["head"]}  # every device trains the small new layer in full

VARIANTS = {
    "FedAvg": {"method": "fedavg", "adapters": False, "learning_rate": 3e-4},
    "FedPLT": {"method": "fedplt", "adapters": False, "learning_rate": 3e-4},
    "FedPLT, LoRA": {"method": "fedplt", "adapters": True, "learning_rate": 5e-3},
}


def make_model(num_topics: int, adapters: bool) -> torch.nn.Module:
    torch.manual_seed(1)
    model = NewsSorter(num_topics)
    if adapters:  # they alone and the head are trained
        lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"])
        peft.inject_adapter_in_model(lora, model)
        model.head.requires_grad_(True)
    return model


def uploads(model: torch.nn.Module, example: dict, method: str) -> list[str]:
    """What a device of each kind uploads in a round."""
    layers = fedplt.cut(model, example, **HEAD)
    ratios = [1.0 if method == "fedavg" else ratio for ratio in KINDS]
    plan = fedplt.make_plan(layers, ratios)
    sizes = [plan.assignment(k).update_size * 4 for k in range(len(ratios))]
    return [f"{size / 1e6:.3g} MB" for size in sizes]


def main() -> None:
    train, validation, topics = articles(TOKENS)
    example = {key: values[:4] for key, values in train[0].items()}
    ratios = [ratio for ratio, number in KINDS.items() for _ in range(number)]
    print("            ", *(f"{f'ratio {ratio}':>10}" for ratio in KINDS), " all uploads  accuracy")
    for name, variant in VARIANTS.items():
        model = make_model(len(topics), variant["adapters"])
        each = uploads(model, example, variant["method"])
        history = fedplt.train(
            model,
            train,
            validation,
            ratios=ratios,
            rounds=ROUNDS,
            split={"alpha": 0.5},
            cut=HEAD,
            method=variant["method"],
            training={
                "optimizer": "adam",
                "learning_rate": variant["learning_rate"],
                "local_steps": 2,
                "batch_size": 8,
            },
            evaluation={"every": 4},
            out=f"{sys.argv[1]}/{name}" if sys.argv[1:] else None,
        )
        total = f"{history.rounds[-1].total.bytes_up / 1e6:,.0f} MB"
        score = history.metric.text(history.scores[-1])
        print(f"{name:12}", *(f"{size:>10}" for size in each), f"{total:>12}", f"{score:>9}")


if __name__ == "__main__":
    main()
