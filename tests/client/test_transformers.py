"""Models nobody here wrote: from the transformers package, sized down, no download."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from fedplt import cut, make_plan
from fedplt.planning.flops import exact_flops
from tests.support.masked_training import assert_equals_masked

pytestmark = [
    pytest.mark.transformers,
    pytest.mark.slow,  # to import it takes seconds
    pytest.mark.skipif(find_spec("transformers") is None, reason="a dependency of developers only"),
]


def distilbert():
    import transformers

    config = transformers.DistilBertConfig(
        vocab_size=50, dim=16, n_heads=2, n_layers=2, hidden_dim=32, max_position_embeddings=20,
        num_labels=4, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    return transformers.DistilBertForSequenceClassification(config)


def vit():
    import transformers

    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=8, num_labels=4,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def gpt2():
    import transformers

    config = transformers.GPT2Config(
        vocab_size=50, n_positions=20, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def tokens():
    return torch.randint(0, 50, (3, 7))


def classes():
    return torch.randint(0, 4, (3,))


CASES = {
    "distilbert": (distilbert, tokens, classes),
    "vit": (vit, lambda: torch.randn(3, 3, 16, 16), classes),
    "gpt2": (gpt2, tokens, tokens),
}


def loss(output, targets):
    logits = output.logits
    return F.cross_entropy(logits if logits.ndim == 2 else logits.transpose(1, 2), targets)


@pytest.mark.parametrize("optimizer", ["fused", "momentum", "adamw"])
@pytest.mark.parametrize("name", CASES)
def test_equals_masked_training(name, optimizer):
    make, inputs, targets = CASES[name]
    torch.manual_seed(1)
    model = make().train()
    layers = cut(model, inputs())
    assert layers.size == sum(p.numel() for p in model.parameters())
    plan = make_plan(layers, [1.0, 0.5, 0.29, 0.1, 0.06])
    data = [(inputs(), targets()) for _ in range(2)]
    for client in range(plan.num_clients):
        assert_equals_masked(model, plan.assignment(client), data, optimizer, loss=loss)
    flops = [exact_flops(plan.assignment(client)) for client in range(plan.num_clients)]
    gradients = [entry.weight_gradients for entry in flops]
    assert gradients == sorted(gradients, reverse=True)
    assert gradients[-1] < 0.25 * gradients[0]


def test_gpt2_counts_its_tied_embedding_once_and_turns_its_weights():
    layers = cut(gpt2(), {"input_ids": tokens()})
    sizes = {layer.name: (layer.size, layer.num_sublayers) for layer in layers}
    assert sizes["transformer.wte"] == (800, 50)
    assert sizes["transformer.h.0.attn.c_attn"] == (16 * 48 + 48, 16)
    assert "lm_head" not in sizes
