"""What clients send: honest evaluations pass, implausible ones do not, and no answer ends a run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedplt.client import METRICS, Evaluation, Metric, combine, evaluate_chunk
from fedplt.data.samples import TensorSamples
from fedplt.errors import DataError, UpdateError
from fedplt.server import norm_problem, read_each, validate_evaluation
from fedplt.text import csv_cell, printable


def data_of(metric, number, random):
    """Outputs of a model, and targets, of the shapes that the metric takes."""
    outputs = 3 * torch.randn(number, 4, generator=random)
    if metric in ("rmse", "mae", "r2"):
        return outputs, torch.randn(number, 4, generator=random)
    if metric in ("f1", "macro-f1"):
        return outputs, torch.randint(0, 2, (number, 4), generator=random).float()
    if metric in ("perplexity", "token-accuracy"):
        tokens = torch.randint(0, 4, (number, 6), generator=random)
        return torch.randn(number, 4, 6, generator=random), tokens
    return outputs, torch.randint(0, 4, (number,), generator=random)


@pytest.mark.parametrize("name", METRICS)
@settings(deadline=None, max_examples=20)
@given(number=st.integers(1, 40), seed=st.integers(0, 1000))
def test_what_a_model_gives_is_accepted(name, number, seed):
    outputs, targets = data_of(name, number, torch.Generator().manual_seed(seed))
    samples, metric = TensorSamples(outputs, targets), METRICS[name]
    loss = lambda found, wanted: found.square().mean()  # noqa: E731
    chunk = evaluate_chunk(torch.nn.Identity(), samples, 0, loss, metric)
    validate_evaluation(combine([chunk], metric), metric)


GOOD = Evaluation(0.5, 0.75, np.array([1, 3]), np.array([1.0, 2.0]), count=4, sums=np.array([3.0]))
BAD = {
    "score": {"score": 1.5},
    "no score": {"score": math.nan},
    "loss": {"loss": math.inf},
    "a loss whose mean overflows": {"loss": -1e308},
    "more right than examples": {"sums": np.array([5.0])},
    "negative": {"sums": np.array([-1.0])},
    "not finite": {"sums": np.array([math.nan])},
    "other labels": {"label_counts": np.array([1, 4])},
    "overflowing labels": {"label_counts": np.array([2**62, 2**62, 2**62, 2**62 + 4])},
    "negative labels": {"label_counts": np.array([-1, 5])},
    "labels without scores": {"label_scores": None},
    "scores by label": {"label_scores": np.array([2.0, 1.0])},
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_model_gives_is_refused(name):
    validate_evaluation(GOOD, METRICS["accuracy"])
    with pytest.raises(UpdateError):
        validate_evaluation(replace(GOOD, **BAD[name]), METRICS["accuracy"])


@pytest.mark.parametrize("sums", [[-1.0, 0.0, 9.0], [1.0, 9.0, 9.0], [1.0, 0.0, -9.0]])
def test_sums_and_squares_that_no_targets_have_are_no_score(sums):
    """They would make the variance of all clients' targets together small, or negative."""
    with pytest.raises(DataError, match="R2"):
        METRICS["r2"].score(np.array(sums), 3)


def test_the_limits_of_an_own_mean_are_those_of_its_numbers():
    mean = Metric(lambda found, wanted: found, name="mine", direction="higher", limits=(-2, 2))
    found = Evaluation(0.5, -1.0, count=3, sums=np.array([-3.0]))
    validate_evaluation(found, mean)
    with pytest.raises(UpdateError, match="mine"):
        validate_evaluation(replace(found, sums=np.array([-7.0])), mean)


@pytest.mark.parametrize(
    "error", [ValueError, OverflowError, RecursionError, MemoryError, KeyError]
)
def test_any_error_is_a_refusal_of_that_client_alone(error):
    def read(client, answer):
        if client == 1:
            raise error("\x1b[2J\nforged")
        return 2 * answer

    found, refused = read_each({0: 1, 1: 2, 2: 3}, read)
    assert found == {0: 2, 2: 6}
    assert list(refused) == [1] and refused[1].isprintable() and error.__name__ in refused[1]


def test_an_interruption_is_no_refusal():
    def read(client, answer):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_each({0: 1}, read)


@given(st.floats())
def test_norms_are_finite_in_float32_and_not_negative(norm):
    sound = 0 <= norm <= math.sqrt(np.finfo(np.float32).max)
    assert (norm_problem(norm) is None) == sound


@given(st.text())
def test_texts_from_outside_are_one_line(text):
    shown = printable(text)
    assert shown.isprintable() and len(shown) <= 2000
    if text.isprintable():
        assert shown == text


@given(st.text())
def test_no_text_is_a_formula(text):
    cell = csv_cell(text)
    assert cell in (text, f"'{text}")
    assert not str(cell).startswith(("=", "@", "\t", "\r", "\n", "\uff1d", "\uff20"))
