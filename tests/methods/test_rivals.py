"""Federated dropout, FedEcover, FjORD and FedPart: what each trains, round by round."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedplt import ConfigError, cut
from fedplt.federation.cost_forecast import forecast
from fedplt.methods import PlanRequest, make_method
from fedplt.models import fcn as fcn_model
from fedplt.planning import download_bytes
from fedplt.sampling.samplers import SamplingRequest, Strong
from tests.support.image_jobs import image_job, plan_request, trained
from tests.support.in_process import in_process
from tests.support.runs import run_job, same

SPACES = (12, 8)
"""Hidden units of the small FCN."""


def plan(name, ratios, **options):
    return make_method(name, options).full_plan(plan_request("fcn", ratios))


def held(made, client, round):
    return [units.tolist() for units in made.held_units(client, round)]


def test_federated_dropout_shares_one_draw_among_clients_of_a_rate():
    made = plan("federated-dropout", [0.4, 0.1, 0.4, 0.1])
    for round in range(20):
        assert held(made, 0, round) == held(made, 2, round)
        assert held(made, 1, round) == held(made, 3, round)
    rounds = [held(made, 0, round) for round in range(20)]
    assert len({str(each) for each in rounds}) == 20
    sizes = {tuple(map(len, each)) for each in rounds}
    assert len(sizes) == 1 and not made.costs_change and not made.uncovered
    used = np.bincount(np.concatenate([each[0] for each in rounds]), minlength=12)
    assert used.min() > 0


def test_federated_dropout_draws_by_seed():
    request = plan_request("fcn", [0.4])
    one, other = (PlanRequest(request.layers, [0.4], s, request.find_spaces) for s in (0, 1))
    method = make_method("federated-dropout")
    assert held(method.plan(one), 0, 3) == held(method.plan(one), 0, 3)
    assert held(method.plan(one), 0, 3) != held(method.plan(other), 0, 3)


@pytest.mark.parametrize("ratios", [[0.4, 0.1, 0.4], [0.1], [0.6, 0.6, 1.0, 0.1], [0.05, 0.05]])
def test_fedecover_covers_all_units_evenly(ratios):
    made = plan("fedecover", ratios)
    clients = range(len(ratios))
    for space, width in enumerate(SPACES):
        drawn = sum(len(held(made, client, 0)[space]) for client in clients)
        cycle = -(-width // drawn)
        for start in range(0, 5 * cycle, cycle):  # from one new order to the next
            used = np.zeros(width, dtype=int)
            for client, round in itertools.product(clients, range(start, start + cycle)):
                units = held(made, client, round)[space]
                assert units == sorted(set(units))
                used[units] += 1
            assert used.min() >= 1 and used.max() - used.min() <= 1
    assert not made.uncovered and not made.costs_change


def test_fedecover_draws_without_replacement_until_the_pool_is_empty():
    made = plan("fedecover", [0.1])
    number = len(held(made, 0, 0)[0])
    assert 12 % number == 0  # so rounds share the pool exactly
    cycles = [
        [unit for round in range(start, start + 12 // number) for unit in held(made, 0, round)[0]]
        for start in range(0, 36, 12 // number)
    ]
    assert all(sorted(cycle) == list(range(12)) for cycle in cycles)
    assert len({str(cycle) for cycle in cycles}) > 1  # then anew


def test_fedecovers_coverage_counts_every_client():
    made = plan("fedecover", [0.4, 0.4, 0.1])
    total = sum(len(held(made, client, 0)[0]) for client in range(3))
    assert made.coverage[0].sum() == total  # fc1 has a sub-layer per unit


def test_fjord_draws_nested_widths_up_to_the_clients_own():
    made, widest = plan("fjord", [1.0, 0.3]), plan("heterofl", [1.0, 0.3])
    assert made.rates.tolist() == widest.rates.tolist()
    for client in range(2):
        drawn = [held(made, client, round) for round in range(60)]
        assert all(units == list(range(len(units))) for each in drawn for units in each)
        largest = held(widest, client, 0)
        assert max(drawn, key=lambda each: len(each[0])) == largest
        assert len({len(each[0]) for each in drawn}) == min(5, len(largest[0]))
        ratios = [made.assignment(client, round).ratio for round in range(400)]
        spread = np.std(ratios) / 20
        assert abs(np.mean(ratios) - made.achieved_ratios[client]) < 4 * spread
        assert max(ratios) == pytest.approx(widest.achieved_ratios[client])
    assert made.costs_change


def test_fjord_draws_from_the_given_widths():
    made = plan("fjord", [1.0, 0.001], rates=[0.25, 0.5, 1.0])
    assert {made.rate(0, round) for round in range(50)} == {0.25, 0.5, 1.0}
    assert {made.rate(1, round) for round in range(50)} == {0.25}
    sizes = [len(held(made, 0, round)[0]) for round in range(50)]
    assert set(sizes) == {3, 6, 12}


def test_fjord_warns_of_units_that_are_too_far_out_for_all():
    assert plan("fjord", [0.3, 0.2]).uncovered == plan("heterofl", [0.3, 0.2]).uncovered != ()
    assert plan("fjord", [0.3, 1.0]).uncovered == ()


def layers_trained(made, round):
    return [bool(ranges) for ranges in made.assignment(0, round).slices]


def test_fedpart_trains_everything_then_one_layer_at_a_time():
    made = plan("fedpart", [1.0, 0.1], full_rounds=1, rounds_per_layer=2)
    first, second, third = np.eye(3, dtype=bool).tolist()
    cycle = [[True] * 3, first, first, second, second, third, third]
    assert [layers_trained(made, round) for round in range(14)] == cycle * 2
    assert [made.in_round(round)[1].slices for round in range(14)] == [
        made.assignment(0, round).slices for round in range(14)
    ]
    assert made.achieved_ratios.tolist() == pytest.approx([3 / 7] * 2)  # (1 + 2) of 7 rounds
    assert made.costs_change and not made.uncovered


def test_fedpart_has_the_authors_rounds_by_default():
    made = plan("fedpart", [0.5])
    assert [all(layers_trained(made, round)) for round in range(12)] == [True] * 5 + [False] * 6 + [
        True
    ]


def test_fedpart_goes_by_the_flow_of_data_and_leaves_out_layers_that_are_always_trained():
    layers = cut(fcn_model(num_inputs=8, hidden=(6, 5)), torch.zeros(2, 8), always=["fc2"])
    made = make_method("fedpart", {"full_rounds": 0, "rounds_per_layer": 1}).plan(
        PlanRequest(layers, [0.5])
    )
    assert [layers_trained(made, round) for round in range(3)] == [
        [True, True, False],
        [False, True, True],
        [True, True, False],
    ]


def test_fedpart_uploads_the_trained_layer_only_and_records_it():
    made = image_job("fedpart", "cnn", rounds=5, options={"full_rounds": 1, "rounds_per_layer": 1})
    history = run_job(made, engine=in_process)
    sizes = [layer.size for layer in made.layers]
    values = [record.cost.bytes_up for record in history.rounds]
    whole = values[0]
    assert whole > max(values[1:])
    assert np.argsort(values[1:]).tolist() == np.argsort(sizes).tolist()
    flops = [record.cost.flops for record in history.rounds]
    assert flops[0] > max(flops[1:])
    assert len({record.cost.bytes_down for record in history.rounds}) == 1


def test_static_norms_are_refused():
    with pytest.raises(ConfigError, match="fedpart's frozen normalization"):
        image_job("fedpart", "resnet8", options={"static_norm": True})


@pytest.mark.parametrize("method", ["fedpart", "fjord"])
def test_forecasts_are_the_mean_of_rounds_whose_costs_differ(method):
    made = image_job(method, "cnn", rounds=20)
    history = run_job(made, engine=in_process)
    expected = forecast(made, 1)
    for key in ("bytes_up", "bytes_down", "flops"):
        mean = np.mean([getattr(record.cost, key) for record in history.rounds])
        assert getattr(expected, key) == pytest.approx(mean, rel=1e-6)


STRONG = {"sampling": {"name": "strong"}}


def test_fedavg_on_the_strong_clients_is_fedplt_with_them_alone(monkeypatch):
    """Their ratio is 1, so they train everything; the others neither train nor receive anything."""
    made, state = trained("fedplt", "cnn", ratios=[1.0, 0.4, 1.0, 0.1], **STRONG)
    history = run_job(image_job("fedplt", "cnn", ratios=[1.0, 0.4, 1.0, 0.1], **STRONG))
    assert [record.sampling["chosen"] for record in history.rounds] == [[0, 2], [0, 2]]
    assert history.rounds[0].cost.bytes_down == 2 * download_bytes(made.plan.assignment(0))
    monkeypatch.setattr(
        "fedplt.sampling.samplers.Strong.probabilities",
        lambda self, request: np.array([1.0, 0.0, 1.0, 0.0]),
    )
    assert same(state, trained("fedavg", "cnn", ratios=[1.0] * 4, **STRONG)[1])


def test_strong_means_at_least_the_given_ratio_or_the_strongest():
    ratios = np.array([0.5, 0.29, 0.06])
    request = SamplingRequest(0, 1, np.ones(3, dtype=np.int64), ratios, np.full(3, np.nan))
    assert Strong(min_ratio=0.29).probabilities(request).tolist() == [1, 1, 0]
    assert Strong().probabilities(request).tolist() == [1, 0, 0]
