"""Suggestions for misspelled names."""

from __future__ import annotations

import pytest

from fedplt.configuration.config import RunConfig
from fedplt.configuration.sampling_config import SAMPLERS
from fedplt.errors import did_you_mean
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
