"""``python -m reproduction theory`` as people use it."""

from __future__ import annotations

import json

import pytest

from tests.support.pictures import svg_texts

pytestmark = pytest.mark.slow


def test_theory(reproduction, tmp_path):
    picture = tmp_path / "theory.svg"
    done = reproduction("theory", "--picture", picture)
    assert done.returncode == 0, done.stderr
    assert "All conditions hold: the bound is proven, and it holds." in done.stdout
    assert {"measured", "bound", "squared distance to the optimum"} <= set(svg_texts(picture))


def test_options(reproduction, tmp_path):
    flags = ["--problem", "logistic", "--schedule", "decaying", "--noise", 0.1, "--repeats", 3]
    done = reproduction("theory", *flags, "--rounds", 20, "--local-steps", 2, "--json")
    found = json.loads(done.stdout)
    assert len(found["distances"]) == 41
    assert found["bound_holds"]
    assert found["step_sizes"][0] > found["step_sizes"][-1]


def test_noise(reproduction, tmp_path):
    picture = tmp_path / "noise.svg"
    flags = ["--ratio", 1, "--clients", 1, "--heterogeneity", 0, "--step-size", 1e-5]
    done = reproduction("theory", *flags, "--noise", 300, "--repeats", 2, "--picture", picture)
    assert done.returncode == 0, done.stderr
    assert "it is not contradicted by the samples (99 % intervals" in done.stdout
    assert "99 % intervals of the mean" in svg_texts(picture)
    done = reproduction("theory", "--counterexample", "--noise", 1)
    assert "it is contradicted by the samples (at step 1 the 99 % interval" in done.stdout


def test_counterexample(reproduction, tmp_path):
    picture = tmp_path / "broken.svg"
    done = reproduction("theory", "--counterexample", "--picture", picture)
    assert "Only the stated conditions hold: the bound is not proven, and it is broken" in (
        done.stdout
    )
    shown = svg_texts(picture)
    assert "bound (conditions fail)" in shown and "bound" not in shown
    assert "fails: 7 every client descends to W*" in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--problem", "cubic"], "Known: logistic, quadratic"),
        (["--ratio", 0], "lies in (0, 1]"),
        (["--schedule", "1/t"], "constant or decaying"),
        (["--step-size", 0], "all positive"),
        (["--step-size", 100], "training diverges"),
        (["--problem", "logistic", "--step-size", 1000], "training diverges"),
    ],
)
def test_mistakes(reproduction, arguments, expected):
    done = reproduction("theory", *arguments)
    assert done.returncode == 2
    assert expected in done.stderr
