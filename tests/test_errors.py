"""Suggestions for misspelled names."""

from __future__ import annotations

import pickle

import pytest

from fedplt.configuration.config import RunConfig
from fedplt.configuration.sampling_config import SAMPLERS
from fedplt.errors import ConfigError, did_you_mean
from fedplt.methods import METHODS
from fedplt.models import MODELS

SECTIONS = [
    list(section.model_fields)
    for field in RunConfig.model_fields.values()
    if hasattr(section := field.annotation, "model_fields")
]


@pytest.mark.parametrize("known", [list(METHODS), list(SAMPLERS), list(MODELS), *SECTIONS])
def test_two_swapped_letters_suggest_the_name(known):
    for name in known:
        if len(name) > 2:
            for i in range(len(name) - 1):
                swapped = name[:i] + name[i + 1] + name[i] + name[i + 2 :]
                assert swapped in known or repr(name) in did_you_mean(swapped, known)


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("fedptl", METHODS, "'fedplt'?"),
        ("fedavgg", METHODS, "'fedavg'?"),
        ("target_seconds", ["deadline_seconds", "late_after_seconds"], "or 'deadline_seconds'?"),
        ("x", ["a", "b"], "Known: a, b."),
        ("anything", [], "Known: ."),
    ],
)
def test_the_nearest_names(given, known, meant):
    assert did_you_mean(given, known).endswith(meant)


def test_errors_keep_their_key_and_place_between_processes():
    error = ConfigError("it is 0", key="rounds", also=["seed"], place="in run.toml, line 1")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert str(copy) == "rounds: it is 0 (in run.toml, line 1)"
    assert (copy.key, copy.also, copy.place) == (error.key, error.also, error.place)
