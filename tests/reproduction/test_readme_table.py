"""The table of the README that says what FedPLT is for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduction.readme_table import (
    BLOCK,
    EXP2,
    FAST_ONLY,
    ROUNDS,
    ROWS,
    RUNS,
    SEEDS,
    TIMES,
    generated,
    note,
    table,
)
from reproduction.recorded import Recorded

EXP2_RUNS = Recorded.load(Path("results/exp2/fashion-fcn/runs.json")).runs
FAST = Recorded.load(RUNS).runs[FAST_ONLY.name]


def test_the_readme_shows_the_recorded_runs():
    readme = Path("README.md").read_text()
    assert generated() in readme, "make results"
    score = next(line for line in table().splitlines() if "**FedPLT**" in line).split(" | ")[2]
    assert f"**{score}** over seeds 3, 4 and 5" in readme  # the first lines quote the table
    assert SEEDS == (3, 4, 5)


def test_the_sentence_below_the_table_has_all_seeds_of_the_rows_with_more():
    assert note() == (
        "Over 5 seeds (also 6 and 7, which the other rows do not have): "
        "FedAvg 84.0 ± 0.5 % and FedPLT 82.7 ± 0.9 %."
    )
    assert generated().endswith(f"\n\n{note()}")


def test_only_who_takes_part_differs_from_the_recorded_full_training():
    fedavg = next(c for c in EXP2.contestants if c.name == "fedavg")
    for seed in SEEDS:
        ours = BLOCK.config(FAST_ONLY, ROUNDS, seed).model_dump()
        full = EXP2.config(fedavg, ROUNDS, seed).model_dump()
        differ = {key for key in ours if ours[key] != full[key]}
        assert differ == {"name", "clients", "fleet", "diagnostics"}  # records more, trains alike
        assert ours["clients"]["num_clients"] == full["clients"]["num_clients"]
        assert {group["ratio"] for group in ours["clients"]["groups"]} == {1.0}


@pytest.mark.parametrize("seed", FAST)
def test_five_of_fifty_took_part_in_every_round(seed):
    fast, full = FAST[seed], EXP2_RUNS["fedavg"][seed]
    assert fast.rounds == full.rounds == ROUNDS
    assert (10 * fast.costs["bytes_down"] == full.costs["bytes_down"]).all()
    assert fast.processor.split(", ")[-1] == full.processor.split(", ")[-1]  # torch


def test_every_row_has_a_round_time():
    seconds = json.loads(TIMES.read_text())["round_seconds"]
    assert set(seconds) == set(ROWS)
    for seed in map(str, SEEDS):
        fast, heterofl, fedplt, full = (
            seconds[name][seed] for name in ("fedavg-fast-only", "heterofl", "fedplt", "fedavg")
        )
        assert 0 < fast < heterofl < fedplt < full


def test_the_words_below_the_table_hold():
    def column(index):
        lines = [line.split(" | ") for line in table().splitlines()[2:]]
        return dict(zip(ROWS, [cells[index] for cells in lines], strict=True))

    score, up, hours = (
        {name: float(text.split()[0]) for name, text in column(index).items()}
        for index in (2, 3, 5)
    )
    assert 0.5 < score["fedavg"] - score["fedplt"] < 1.5
    assert 11.5 < score["fedavg"] - score["fedavg-fast-only"] < 12.5
    assert round(up["fedplt"] / up["fedavg"], 2) == 0.22
    assert hours["fedplt"] < hours["fedavg"] / 2
    assert column(4)["fedplt"] == column(4)["fedavg"]
    assert min(column(6), key=lambda name: column(6)[name]) == "heterofl"  # at 75 %
    assert "never" in column(7)["heterofl"]
