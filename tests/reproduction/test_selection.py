"""Which runs stand in a table, and what they cost at equal terms."""

from __future__ import annotations

import pytest

from reproduction.selection import history_of, select
from reproduction.targets import (
    BYTES,
    EXACT_FLOPS,
    Target,
    accuracy_target,
    cost_target,
    crossing_note,
    gain,
    value_at,
)
from tests.support.recorded import PROCESSOR, fake_recorded, fake_run


def exp2(**runs):
    return fake_recorded("exp2", "fashion-fcn", runs)


def test_a_recorded_run_has_the_history_of_its_folder():
    run = fake_run([0.1, 0.3, 0.5], every=2, up=3, down=4, flops=5, paper_flops=6.5)
    history = history_of(run)
    assert [record.round for record in history.evaluated] == [2, 4, 6]
    total = history.rounds[-1].total
    assert (total.bytes_up, total.bytes_down, total.flops) == (18, 24, 30)
    assert total.paper_flops == 39
    assert history.final_score(2) == pytest.approx(0.4)
    assert history_of(run, 5).scores == [0.1, 0.3]


def test_all_runs_of_a_table_have_the_same_rounds():
    """As many as each contestant has some run of: shorter runs of other seeds are left out."""
    long, short = fake_run([0.5] * 30), fake_run([0.2] * 20)
    selection = select(exp2(fedavg={1: long, 2: short}, fedplt={1: short, 3: short}))
    assert (selection.rounds, selection.seeds) == (20, [1, 2, 3])
    assert all(
        len(h.rounds) == 20 for e in selection.entries.values() for h in e.histories.values()
    )
    selection = select(exp2(fedavg={1: long, 2: short}, fedplt={1: long, 2: long}))
    assert selection.rounds == 30
    assert list(selection.entries["fedavg"].runs) == [1]
    assert list(selection.entries["fedplt"].runs) == [1, 2]
    # What is not asked for does not shorten the others.
    assert select(exp2(fedavg={1: long}, fedplt={1: short}), ["fedavg"]).rounds == 30


def test_questions_of_cost_take_runs_as_long_as_they_are():
    long, short = fake_run([0.5] * 30), fake_run([0.2] * 20)
    selection = select(exp2(fedavg={1: long, 2: short}, fedplt={1: long}), uncut=True)
    assert (selection.rounds, selection.seeds) == (20, [1, 2])
    found = selection.entries["fedavg"].histories
    assert {seed: len(history.rounds) for seed, history in found.items()} == {1: 30, 2: 20}


def test_a_diverged_run_is_set_apart_and_shortens_nothing():
    wild = fake_run([0.1] * 3, diverged="no update is finite")
    selection = select(exp2(fedavg={1: fake_run([0.5] * 9)}, feddrop={1: wild}))
    assert selection.rounds == 9
    entry = selection.entries["feddrop"]
    assert not entry.runs and list(entry.diverged) == [1]
    assert selection.difference("fedavg", "feddrop") is None


def test_pairs_have_the_same_seed_and_the_same_kind_of_processor():
    other = "Intel Xeon, AVX512, torch 2.13.0"
    first = {seed: fake_run([0.5]) for seed in (1, 2, 3)}
    second = {
        1: fake_run([0.4]),
        2: fake_run([0.1], processor=other),
        4: fake_run([0.2]),
    }
    selection = select(exp2(fedavg=first, fedplt=second))
    assert selection.pairs("fedavg", "fedplt") == [1]
    assert selection.difference("fedavg", "fedplt").estimate == pytest.approx(10)
    assert selection.processors == sorted([PROCESSOR, other])
    # A run that was continued on another kind is of no one kind.
    both = {1: fake_run([0.5], processor=f"{PROCESSOR} and {other}")}
    assert select(exp2(fedavg=both, fedplt=both)).pairs("fedavg", "fedplt") == []
    assert selection.pairs("fedavg", "heterofl") == []


def test_final_accuracy_is_the_last_ten_or_the_last():
    run = fake_run([0.0] * 5 + [0.5] * 9 + [1.0])
    entry = select(exp2(fedavg={1: run})).entries["fedavg"]
    assert entry.finals() == {1: pytest.approx(0.55)}
    assert entry.finals(1) == {1: 1.0}
    resnet = select(fake_recorded("exp1", "cifar-resnet", {"fedavg": {1: run}}))
    assert resnet.last == 1  # evaluations are five rounds apart there


@pytest.fixture
def two():
    """FedPLT costs half as much per round and learns as fast by round."""
    steps = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    return select(
        exp2(
            fedavg={1: fake_run(steps), 2: fake_run(steps)},
            fedplt={1: fake_run(steps, up=0, flops=5e11), 2: fake_run(steps, up=0, flops=5e11)},
        )
    )


def test_equal_accuracy_by_hand(two):
    target = accuracy_target(two, ["fedplt", "fedavg"], 0.4)
    assert target == Target("accuracy", 0.4, from_paper=True)
    avg, plt = (two.entries[name].histories[1] for name in ("fedavg", "fedplt"))
    assert (value_at(avg, target, BYTES), value_at(plt, target, BYTES)) == (80e9, 40e9)
    saved = gain(two, "fedplt", "fedavg", target, BYTES)
    assert (saved.estimate, saved.low, saved.high, saved.number) == (40, 40, 40, 2)
    assert gain(two, "fedplt", "fedavg", target, EXACT_FLOPS).estimate == 2
    # Out of reach: the whole percentage below the smallest final accuracy, which is 0.35.
    assert accuracy_target(two, ["fedplt", "fedavg"], 0.7) == Target("accuracy", 0.35, False)


def test_equal_communication_by_hand(two):
    target = cost_target(two, ["fedplt", "fedavg"], BYTES, 40e9)
    assert target.from_paper and target.text == "40.00 GB"
    assert gain(two, "fedplt", "fedavg", target, "accuracy").estimate == pytest.approx(20)
    assert gain(two, "fedplt", "fedavg", target, EXACT_FLOPS).estimate == pytest.approx(0)
    assert gain(two, "fedplt", "fedavg", target, BYTES) is None
    # FedPLT spends 60 GB in all: more is beyond it.
    assert cost_target(two, ["fedplt", "fedavg"], BYTES, 100e9) == Target(BYTES, 60e9, False)
    assert cost_target(two, ["fedplt", "heterofl"], BYTES, 40e9).value == 40e9
    assert value_at(two.entries["fedplt"].histories[1], Target(BYTES, 99e9, True), BYTES) is None


def test_curves_cross_where_paired_seeds_do():
    """On seed 1 FedAvg has 30 % at 40 GB, 70 % at 60 GB; seed 2 of FedPLT has no partner."""
    slow, fast = fake_run([0.1, 0.3, 0.7, 0.8]), fake_run([0.4, 0.51, 0.51, 0.51])
    alone = fake_run([0.9] * 4)
    for fedplt in ({1: fast}, {1: fast, 2: alone}):
        found = select(exp2(fedavg={1: slow}, fedplt=fedplt))
        (note,) = crossing_note(found, "fedplt")
        assert note == (
            "By communication FedPLT is ahead of FedAvg up to 50 GB, and behind from 51 GB on "
            "(seed 1)."
        )
    assert crossing_note(select(exp2(fedavg={1: slow}, fedplt={2: alone})), "fedplt") == []
    other = {1: fake_run([0.9] * 4, processor="another")}
    assert crossing_note(select(exp2(fedavg={1: slow}, fedplt=other)), "fedplt") == []
    better = select(exp2(fedavg={1: slow}, fedplt={1: alone}))
    assert crossing_note(better, "fedplt") == [
        "FedPLT is ahead of FedAvg at all budgets up to 80 GB of communication (seed 1)."
    ]
