"""FedPLT in the place of FedAvg, with apps in this process: the simulator's bits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedplt
from fedplt.errors import ConfigError, RunError
from fedplt_flower import SlicesApp, train_slices
from tests.support.app_nodes import (
    MemoryGrid,
    app_of,
    arrays_of,
    example,
    image_case,
    small_strategy,
    started,
)
from tests.support.jobs import blob_job, small_model
from tests.support.runs import final_state, same

pytestmark = pytest.mark.slow

MOMENTUM = {"learning_rate": 0.1, "batch_size": 16, "momentum": 0.9}
OCS = {"name": "fedplt-ocs", "budget": 1.0, "objective": "aggregate"}
OWN = {
    "sampling": {"name": "tests.support.own_code:LargestLast"},
    "server": {"aggregation": "tests.support.own_code:OwnMean"},
}


def blobs_with(**settings):
    return blob_job(rounds=3, training=MOMENTUM, **settings)


ONE_BY_ONE = {"full_rounds": 1, "rounds_per_layer": 1}
CASES = {
    "fedplt": lambda: (blobs_with(), small_strategy(), small_model),
    "two phases": lambda: (
        blobs_with(sampling=OCS),
        small_strategy(sampling=OCS, num_examples=blobs_with().num_examples.tolist()),
        small_model,
    ),
    "some clients": lambda: (
        blobs_with(sampling={"name": "uniform", "num_clients": 2}),
        small_strategy(sampling={"name": "uniform", "num_clients": 2}),
        small_model,
    ),
    "own sampler and rule": lambda: (
        blobs_with(**OWN),
        small_strategy(**OWN),
        small_model,
    ),
    "heterofl": lambda: image_case("heterofl", "cnn"),
    "feddrop": lambda: image_case("feddrop", "resnet8"),
    "fedbn": lambda: image_case("fedbn", "resnet8"),
    "fedpmt": lambda: image_case("fedpmt", "resnet8"),
    "fedpart": lambda: image_case("fedpart", "cnn", options=ONE_BY_ONE),
    "fedecover": lambda: image_case("fedecover", "cnn"),
}


@pytest.mark.parametrize(
    ("name", "over"),
    [*((name, "model") for name in CASES), ("fedplt", "part"), ("heterofl", "part")],
)
def test_same_bits_as_the_simulator(name, over):
    job, strategy, make_model = CASES[name]()
    grid = MemoryGrid(app_of(job, make_model, over=over), job.plan.num_clients)
    result = started(job, strategy, grid)
    history, tensors = final_state(job)
    assert same(tensors, dict(result.arrays.to_torch_state_dict()))
    told = [record.train_loss for record in strategy.history.rounds]
    assert told == pytest.approx([record.train_loss for record in history.rounds], rel=1e-5)


def test_only_slices_travel():
    job, strategy = blobs_with(), small_strategy()
    grid = MemoryGrid(app_of(job), 5)
    started(job, strategy, grid)
    sizes = {}
    for message in grid.sent:
        if message.metadata.message_type == "train":
            sizes[message.metadata.dst_node_id - 100] = message
    assert len(sizes) == 5
    for client, message in sizes.items():
        assert set(message.content) == {"fedplt", "numbers", "config"}
        reply = grid.app(message, grid.contexts[100 + client])
        update = reply.content["numbers"]["update"]
        assert update.shape == (strategy.plan.assignment(client).update_size,)


def test_two_phases_ask_for_updates_after_the_norms():
    job = blobs_with(sampling=OCS)
    grid = MemoryGrid(app_of(job), 5)
    strategy = small_strategy(sampling=OCS)
    started(job, strategy, grid)
    assert grid.types().count("train") == 15
    assert 0 < grid.types().count("train.upload") < 15
    assert all(record.sampling for record in strategy.history.rounds)


def test_configurations_and_metrics_come_and_go_as_with_fedavg(tmp_path):
    job, seen, asked = blobs_with(), [], []
    grid = MemoryGrid(app_of(job, seen=seen), 5)
    strategy = small_strategy(out=tmp_path / "run")

    def evaluate(round, arrays):
        asked.append((round, set(arrays)))
        return MetricRecord({"accuracy": 0.25, "loss": 2.0})

    result = started(
        job, strategy, grid, train_config=ConfigRecord({"lr": 0.5}), evaluate_fn=evaluate
    )
    assert seen[0] == {"lr": 0.5, "server-round": 1}
    assert asked == [(round, set(job.model.state_dict())) for round in range(4)]
    assert set(result.evaluate_metrics_serverapp) == {0, 1, 2, 3}
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    assert result.evaluate_metrics_clientapp[3]["eval_acc"] > 0.9
    assert result.train_metrics_clientapp[3]["train_loss"] < 0.7
    records = strategy.history.rounds
    assert [record.score for record in records] == [0.25] * 3
    assert records[-1].client_scores["mean"] > 0.9
    assert (tmp_path / "run" / "rounds.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("metric", "called"),
    [("rmse", "val_rmse"), (fedplt.MetricInfo(name="my pinball", direction="lower"), "pinball")],
)
def test_an_own_metric_is_the_score(metric, called, tmp_path):
    job = blobs_with()
    strategy = small_strategy(metric=metric, out=tmp_path / "run")

    def evaluate(round, arrays):
        return MetricRecord({"accuracy": 0.25, called: 1.0 / round if round else 9.0})

    started(job, strategy, MemoryGrid(app_of(job), 5), evaluate_fn=evaluate)
    assert [record.score for record in strategy.history.rounds] == [1, 1 / 2, 1 / 3]
    assert fedplt.load_history(tmp_path / "run").metric.direction == "lower"
    with pytest.raises(ConfigError, match="Give the same metric, or another folder"):
        again = small_strategy(out=tmp_path / "run")
        started(job, again, MemoryGrid(app_of(job), 5), evaluate_fn=evaluate)


def test_privacy_is_in_the_records():
    job = blobs_with()
    options = {"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "noise_seed": 1}}
    strategy = small_strategy(server={"weights": "equal"}, checkpoint_every=1, **options)
    started(job, strategy, MemoryGrid(app_of(job), 5))
    epsilons = [record.privacy["epsilon"] for record in strategy.history.rounds]
    assert 0 < epsilons[0] < epsilons[-1]


def test_a_run_goes_on_where_it_was_stopped(tmp_path):
    job, strategy = blobs_with(), small_strategy(out=tmp_path / "run", checkpoint_every=1)
    app, rounds = app_of(job), []

    def stop_in_round_three(message, context):
        rounds.append(message.content["config"]["server-round"])
        if rounds[-1] == 3:
            raise KeyboardInterrupt
        return normal(message, context)

    normal = app._registered_funcs["train.default"]
    app._registered_funcs["train.default"] = stop_in_round_three
    with pytest.raises(KeyboardInterrupt):
        started(job, strategy, MemoryGrid(app, 5))
    grid = MemoryGrid(app_of(job), 5)
    result = started(job, small_strategy(out=tmp_path / "run", checkpoint_every=1), grid)
    assert grid.types().count("train") == 5
    assert same(final_state(job)[1], dict(result.arrays.to_torch_state_dict()))


def changed(**changes):
    return lambda header, arrays: ({**header, **changes}, arrays)


def with_nan(header, arrays):
    arrays["update"][0] = np.nan
    return header, arrays


BAD = {
    "not a number": (with_nan, "not finite"),
    "another client": (changed(client=2), "its client is 2"),
    "an old round": (changed(round=7), "its round is 7"),
    "absurd examples": (changed(num_examples=10**9), "at most 1000000 are allowed"),
    "another slice": (lambda h, a: (h, {"update": a["update"][:-3]}), "its assignment has"),
    "metrics that are none": (changed(metrics={"a": "b"}), "metrics.a"),
    "in words": (lambda h, a: ({"refused": "no power"}, {}), "no power"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_is_refused_and_the_round_unharmed(name):
    change, words = BAD[name]

    def tamper(node, kind, header, arrays):
        return change(header, arrays) if node == 101 and kind == "train" else None

    job, strategy = blobs_with(), small_strategy(max_examples=10**6)
    started(job, strategy, MemoryGrid(app_of(job), 5, tamper))
    for record in strategy.history.rounds:
        assert words in record.rejected.pop("1")
        assert not record.rejected


def test_the_number_of_examples_does_not_change_later():
    def tamper(node, kind, header, arrays):
        if node == 103 and kind == "train" and header["round"] == 1:
            return {**header, "num_examples": header["num_examples"] + 1}, arrays
        return None

    job, strategy = blobs_with(), small_strategy()
    started(job, strategy, MemoryGrid(app_of(job), 5, tamper))
    rejected = [record.rejected for record in strategy.history.rounds]
    assert [set(each) for each in rejected] == [set(), {"3"}, set()]
    assert "62 examples; 61" in rejected[1]["3"]


def broken(kind):
    """An app whose training function goes wrong in client 0."""
    job = blobs_with()
    good, app = app_of(job), SlicesApp()
    normal = good._registered_funcs["train.default"]

    @app.train()
    def train(message, context):
        if context.node_config["partition-id"]:
            return normal(message, context)
        if kind == "no slices":
            metrics = MetricRecord({"num-examples": 3})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        model = torch.nn.Linear(2, 2) if kind == "another model" else small_model()
        with train_slices(message, context, model) as part:
            if kind == "its own error":
                raise ValueError("no such file: data.csv")
        return part.reply(num_examples=0)

    return job, app


WORDS = {
    "no slices": "replied without fedplt's train_slices",
    "another model": "this client's model is not the server's: 0.weight has shape",
    "its own error": "ValueError: no such file: data.csv",
    "no examples": "num_examples",
}


@pytest.mark.parametrize("kind", WORDS)
def test_what_goes_wrong_in_an_app_is_said_in_words(kind):
    job, app = broken(kind)
    strategy = small_strategy(evaluate_on_nodes=False)
    started(job, strategy, MemoryGrid(app, 5))
    assert all(WORDS[kind] in record.rejected["0"] for record in strategy.history.rounds)


def test_frozen_rows_do_not_change_whatever_the_optimizer_does():
    """Weight decay, of an optimizer over all parameters, is for the trained slices alone."""
    job, strategy = blobs_with(), small_strategy(ratios=[0.2] * 5)
    grid = MemoryGrid(app_of(job), 5)
    started(job, strategy, grid)
    message = next(m for m in grid.sent if m.metadata.message_type == "train")
    model = small_model()
    with train_slices(message, grid.contexts[100], model) as part:
        before = copy.deepcopy(part.model.state_dict())
        copied = copy.deepcopy(part.model)
        assert len(list(copied.parameters())) == 4
        trained = sum(p.numel() for p in part.model.parameters())
        assert trained == sum(p.numel() for p in part.parameters())
        assert sum(p.numel() for m in part.model for p in m.parameters()) == trained
        optimizer = torch.optim.AdamW(part.model.parameters(), lr=0.1, weight_decay=0.5)
        part.model(example()).square().sum().backward()
        optimizer.step()
    after = model.state_dict()
    different = sum(int((after[name] != before[name]).sum()) for name in after)
    assert 0 < different <= trained < sum(p.numel() for p in model.parameters())


def test_train_slices_says_that_it_needs_fedplt():
    message = Message(RecordDict({"config": ConfigRecord()}), 100, "train")
    grid = MemoryGrid(SlicesApp(), 1)
    with (
        pytest.raises(Exception, match=r"train_slices needs fedplt_flower\.FedPLT"),
        train_slices(message, grid.contexts[100], small_model()),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratios": 0.5}, "Give num_clients"),
        ({"ratios": {1: 0.5, 2: 0.5}}, "clients are numbered 0 to 1"),
        ({"ratios": [0.5], "num_clients": 2}, "1 for 2 clients"),
        ({"method": {"name": "fedplt", "masked_loss": True}}, "method.masked_loss"),
        ({"num_examples": [3]}, "1 numbers for 5 clients"),
        ({"sampling": {"name": "ocss"}}, "there is no sampler 'ocss'"),
        ({"ratios": None}, "ratios is a NoneType"),
        ({"ratios": [0.5, "x"]}, "that of client 1 is 'x'"),
        ({"ratios": 0.5, "num_clients": 0}, "Give num_clients"),
        ({"metric": 5}, "metric is a int"),
        ({"metric": "accuarcy"}, "there is no 'accuarcy'. Did you mean 'accuracy'"),
        ({"privacy": {"clip": 1.0, "noise_multiplier": 1.0}}, "server.weights"),
    ],
)
def test_wrong_arguments_are_refused_in_words(options, words):
    with pytest.raises(ConfigError, match=words):
        small_strategy(**options)


def test_ratios_in_three_forms():
    one, two = small_strategy(ratios=0.5, num_clients=2), small_strategy(ratios={1: 0.5, 0: 0.5})
    assert one.ratios == two.ratios == small_strategy(ratios=[0.5, 0.5]).ratios
    assert small_strategy(ratios=torch.tensor([0.5, 0.5])).ratios == one.ratios


def test_it_runs_its_own_rounds():
    strategy = small_strategy()
    for call in (strategy.configure_train, strategy.configure_evaluate):
        with pytest.raises(RunError, match="runs its own rounds"):
            call(1, None, None, None)
    for call in (strategy.aggregate_train, strategy.aggregate_evaluate):
        with pytest.raises(RunError, match="runs its own rounds"):
            call(1, [])


def test_nodes_that_cannot_join_are_named():
    """A plain ClientApp does not know the question; it is asked until the time is over."""
    app = ClientApp()

    @app.query("hello")
    def hello(message, context):
        raise AssertionError

    class Refusing(MemoryGrid):
        def get_node_ids(self):
            return []

    with pytest.raises(RunError, match="0 of at least 5 clients joined"):
        small_strategy().start(Refusing(app, 5), arrays_of(small_model()), timeout=0.1)
