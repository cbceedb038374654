"""The Flower engine with nodes in this process: the simulator's bits, and answers not trusted."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedplt.errors import RunError
from fedplt_flower.server import connected_nodes
from fedplt_flower.server.connected_nodes import announcements
from fedplt_flower.server.engine import FlowerEngine
from tests.support.flower_nodes import MemoryWire, memory_engine
from tests.support.image_jobs import image_job
from tests.support.jobs import blob_job
from tests.support.runs import final_state, run_job, same, without_time

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:node .* cannot join"),
]

RATIOS = [{"num_clients": n, "ratio": r} for n, r in ((1, 1.0), (2, 0.5), (2, 0.2))]
OCS = {"name": "fedplt-ocs", "budget": 1.0, "objective": "aggregate"}


def fedplt(**settings):
    return blob_job(rounds=3, clients={"groups": RATIOS}, **settings)


ONE_BY_ONE = {"full_rounds": 1, "rounds_per_layer": 1}
JOBS = {
    "fedplt": fedplt,
    "two phases": lambda: fedplt(sampling=OCS),
    "norms of the last round": lambda: fedplt(
        sampling={"name": "ocs", "budget": 2.0, "norms": "last"}
    ),
    "clipped mean": lambda: fedplt(server={"aggregation": "clipped-mean", "clip": 0.8}),
    "median": lambda: fedplt(server={"aggregation": "median", "min_contributors": 2}),
    "private": lambda: fedplt(
        server={"weights": "equal"},
        sampling={"name": "bernoulli", "probability": 0.5},
        privacy={"clip": 0.5, "noise_multiplier": 0.5, "noise_seed": 3},
        checkpoint_every=1,
    ),
    "heterofl": lambda: image_job("heterofl", "cnn"),
    "feddrop": lambda: image_job("feddrop", "resnet8"),
    "fedrolex": lambda: image_job("fedrolex", "cnn"),
    "static norms": lambda: image_job("heterofl", "resnet8", options={"static_norm": True}),
    "local norms": lambda: image_job("fedbn", "resnet8"),
    "fedpmt": lambda: image_job("fedpmt", "vit"),
    "fedpart": lambda: image_job("fedpart", "resnet8", options=ONE_BY_ONE),
    "federated-dropout": lambda: image_job("federated-dropout", "resnet8"),
    "fedecover": lambda: image_job("fedecover", "cnn"),
    "fjord": lambda: image_job("fjord", "cnn"),
}


@pytest.mark.parametrize("name", JOBS)
def test_same_bits_as_the_simulator(name, tmp_path):
    history, tensors = final_state(JOBS[name]())
    on_nodes, others = final_state(JOBS[name](), engine=memory_engine(tmp_path))
    assert same(tensors, others)
    assert without_time(history) == without_time(on_nodes)


def test_states_that_clients_keep_survive_on_their_nodes(tmp_path):
    """A run that goes on from an older checkpoint finds the state of that round."""
    _, tensors = final_state(image_job("fedbn", "resnet8", rounds=4))
    states, folder = tmp_path / "states", tmp_path / "run"

    def stop_after(number):
        def on_round(record):
            if record.round == number:
                raise KeyboardInterrupt

        return on_round

    job = image_job("fedbn", "resnet8", rounds=4, checkpoint_every=2)
    with pytest.raises(KeyboardInterrupt):  # round 3 was trained, and is not in the checkpoint
        run_job(job, folder, engine=memory_engine(states), on_round=stop_after(3))
    job = image_job("fedbn", "resnet8", rounds=4, checkpoint_every=2)
    history = run_job(job, folder, resume=True, engine=memory_engine(states))
    assert len(history.rounds) == 4
    assert same(tensors, {name: value.clone() for name, value in job.model.state_dict().items()})
    for client in states.iterdir():
        assert len(list(client.iterdir())) <= 4


def test_a_lost_state_is_said_in_words(tmp_path):
    job = image_job("fedbn", "resnet8", rounds=3)

    def lose(record):
        for path in (tmp_path / "client-1").iterdir():
            path.unlink()

    with pytest.warns(
        UserWarning, match="client 1 was not evaluated: the local state of this client"
    ):
        history = run_job(job, engine=memory_engine(tmp_path), on_round=lose)
    assert "the local state of this client" in history.rounds[-1].rejected["1"]


def without_client(client, tmp_path, **settings):
    """The final tensors of a run in which this client's node is never there."""
    wires = []
    make = memory_engine(tmp_path, wires)

    def away(job, stop):
        engine = make(job, stop)
        wires[-1].away.add(100 + client)
        return engine

    return final_state(fedplt(**settings), engine=away)


def test_a_node_that_is_away_is_left_out(tmp_path):
    history, _ = without_client(2, tmp_path)
    assert all(record.rejected == {"2": "its node is not connected."} for record in history.rounds)


def test_a_node_that_does_not_answer_is_left_out_at_the_deadline(tmp_path):
    wires = []
    make = memory_engine(tmp_path, wires)
    job = fedplt(engine={"round_timeout_seconds": 0.3})

    def silent(job, stop):
        engine = make(job, stop)
        engine.nodes.refresh()
        wires[-1].silent.add(102)
        return engine

    history, tensors = final_state(job, engine=silent)
    assert [list(r.rejected) for r in history.rounds] == [["2"]] * 3
    assert history.rounds[0].rejected["2"] == "no answer within 0.3 s."
    assert same(tensors, without_client(2, tmp_path)[1])


def asked_rounds(wire, node, action):
    """The rounds in which a node was asked, from 0."""
    orders = (o for o in wire.sent if (o.node, o.action) == (node, action))
    return [order.header.get("round") for order in orders]


def test_a_mute_node_is_asked_less_and_less_often(tmp_path, monkeypatch):
    """Else it costs every round a deadline; it takes part again when it answers."""
    monkeypatch.setattr(connected_nodes, "MAX_SKIPPED", 4)
    wires = []
    make = memory_engine(tmp_path, wires)

    def silent(job, stop):
        engine = make(job, stop)
        engine.nodes.refresh()
        wires[-1].silent.add(102)
        return engine

    def speak(record):
        if record.round == 10:
            wires[-1].silent.clear()

    job = blob_job(rounds=14, clients={"groups": RATIOS}, engine={"round_timeout_seconds": 0.05})
    history = run_job(job, engine=silent, on_round=speak)
    assert asked_rounds(wires[-1], 102, "train") == [0, 1, 3, 7, 11, 12, 13]
    assert [r.round for r in history.rounds if not r.rejected] == [12, 13, 14]


def test_mute_nodes_are_asked_where_others_are_too_few(tmp_path):
    wires = []
    make = memory_engine(tmp_path, wires)

    def silent(job, stop):
        engine = make(job, stop)
        engine.nodes.refresh()
        wires[-1].silent.add(102)
        return engine

    server, engine = {"min_clients": 5, "attempts": 4}, {"round_timeout_seconds": 0.05}
    with (
        pytest.warns(UserWarning, match="It is tried again"),
        pytest.raises(RunError, match="4 of at least 5 updates came"),
    ):
        run_job(fedplt(server=server, engine=engine), engine=silent)
    assert asked_rounds(wires[-1], 102, "train") == [0, 0, 0, 0]


def test_a_node_that_is_mute_when_it_joins_costs_few_rounds(tmp_path):
    wires = []
    make = memory_engine(tmp_path, wires)

    def silent(job, stop):
        engine = make(job, stop)
        engine.nodes.hello_seconds = 0.05
        wires[-1].silent.add(102)
        return engine

    job = blob_job(rounds=12, clients={"groups": RATIOS})
    history = run_job(job, engine=silent)
    assert len(asked_rounds(wires[-1], 102, "query.hello")) == 4
    assert all(list(record.rejected) == ["2"] for record in history.rounds)


def change_header(**changes):
    return lambda header, arrays: ({**header, **changes}, arrays)


def change_update(change):
    return lambda header, arrays: (header, {"update": change(arrays["update"])})


def with_nan(update):
    update[3] = np.nan
    return update


def records(**arrays):
    """Whatever somebody may send under the right names."""

    def change(header, _):
        numbers = ArrayRecord({name: Array(value) for name, value in arrays.items()})
        return RecordDict({"fedplt": ConfigRecord({"header": str(header)}), "numbers": numbers})

    return change


BAD = {
    "not a number": (change_update(with_nan), "not finite"),
    "another slice": (change_update(lambda u: u[:-5]), "its assignment has"),
    "scaled after its norm": (change_update(lambda u: 100 * u), "the norm of its update"),
    "float64": (change_update(lambda u: u.astype(np.float64)), "float64"),
    "two dimensions": (change_update(lambda u: u[None]), "one flat"),
    "bytes": (change_update(lambda u: u.view(np.uint8)), "uint8"),
    "no update": (lambda header, _: (header, {}), "no arrays"),
    "two updates": (lambda h, a: (h, {**a, "more": a["update"]}), "'more'"),
    "absurd examples": (change_header(num_examples=10**12), "num_examples"),
    "no examples": (change_header(num_examples=0), "num_examples"),
    "infinite examples": (change_header(num_examples=float("inf")), "num_examples"),
    "a text as norm": (change_header(norm="1"), "norm"),
    "an old round": (change_header(round=17), "its round is 17"),
    "another client": (change_header(client=1), "its client is 1"),
    "another plan": (change_header(plan="0" * 16), "its plan is"),
    "more keys": (change_header(import_path="os:system"), "import_path"),
    "not JSON": (records(update=np.zeros(3, np.float32)), "cannot be read"),
    "deep": (lambda h, a: ({**h, "norm": eval("[" * 60 + "]" * 60)}, a), "norm"),
    "refused by its owner": (lambda h, a: ({"refused": "not at night"}, {}), "not at night"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_refused_and_the_round_unharmed(name, tmp_path):
    change, words = BAD[name]

    def tamper(node, action, header, arrays):
        return change(header, arrays) if (node, action) == (102, "train") else None

    history, tensors = final_state(fedplt(), engine=memory_engine(tmp_path, tamper=tamper))
    for record in history.rounds:
        assert list(record.rejected) == ["2"]
        assert words in record.rejected["2"]
    assert same(tensors, without_client(2, tmp_path)[1])


def test_orders_that_were_on_the_way_at_an_interruption_are_sent_again(tmp_path):
    wires = []
    make = memory_engine(tmp_path, wires)

    def interrupted(job, stop):
        engine = make(job, stop)
        wire, pull = wires[-1], wires[-1].pull

        def loses(ids):
            found = pull(ids)
            if wire.interruptions == 0 and any(o.action == "train" for o in wire.sent):
                wire.interruptions += 1
                return {}
            return found

        wire.pull = loses
        return engine

    _, tensors = final_state(fedplt())
    history, others = final_state(fedplt(), engine=interrupted)
    assert same(tensors, others)
    assert not any(record.rejected for record in history.rounds)


def first_claim(node, action, header, arrays):
    """Node 100 says first that it is client 2."""
    bad = (node, action) == (100, "query.hello")
    number = int(fedplt().num_examples[2])
    return ({**header, "client": 2, "num_examples": number}, {}) if bad else None


def test_a_node_is_the_client_that_its_key_belongs_to(tmp_path):
    def make(job, stop):
        wire = MemoryWire(job, tmp_path, first_claim)
        return FlowerEngine(job, wire, stop, registered=lambda: {100 + k: k for k in range(4)})

    with pytest.warns(UserWarning) as warned:
        history, _ = final_state(fedplt(), engine=make)
    said = {str(warning.message) for warning in warned}
    assert "node 100 cannot join: it claims to be client 2, but its key is client 0's." in said
    assert "node 104 cannot join: it claims to be client 4, but its key is not in" in str(said)
    assert all(list(record.rejected) == ["0", "4"] for record in history.rounds)
    wire = MemoryWire(fedplt(), tmp_path, first_claim)
    with pytest.raises(RunError, match=r"clients \[0\] did not join"):
        announcements(
            wire,
            5,
            0,
            examples=True,
            devices=False,
            registered=lambda: {100 + k: k for k in range(5)},
        )


def test_nobody_joins_while_keys_cannot_be_read(tmp_path):
    def unreadable():
        raise OSError("no such file")

    wire = MemoryWire(fedplt(), tmp_path)
    engine = FlowerEngine(fedplt(), wire, registered=unreadable)
    with pytest.warns(UserWarning, match="no node can join: .*no such file"):
        engine.nodes.refresh()
    assert not engine.nodes.node_of and not wire.sent


def test_two_nodes_cannot_be_one_client(tmp_path):
    def tamper(node, action, header, arrays):
        bad = (node, action) == (102, "query.hello")
        return ({**header, "client": 1, "num_examples": number}, {}) if bad else None

    number = int(fedplt().num_examples[1])
    with pytest.warns(UserWarning, match="node 102 cannot join: it claims to be client 1"):
        history, _ = final_state(fedplt(), engine=memory_engine(tmp_path, tamper=tamper))
    assert all(list(record.rejected) == ["2"] for record in history.rounds)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": 17}, "clients are 0 to 4"),
        ({"num_examples": 10**6}, "examples"),
        ({"layers": "1234"}, "cut into other layers"),
        ({"client": -1}, "client"),
    ],
)
def test_nodes_that_do_not_fit_cannot_join(change, words, tmp_path):
    def tamper(node, action, header, arrays):
        bad = (node, action) == (102, "query.hello")
        return ({**header, **change}, {}) if bad else None

    with pytest.warns(UserWarning, match=f"node 102 cannot join: .*{words}"):
        final_state(fedplt(), engine=memory_engine(tmp_path, tamper=tamper))


def test_a_bad_node_does_not_keep_the_server_from_learning_the_examples(tmp_path):
    job = fedplt()

    def tamper(node, action, header, arrays):
        bad = {103: {"num_examples": "many"}, 104: {"client": 17}}
        return ({**header, **bad[node]}, {}) if node in bad else None

    wire = MemoryWire(job, tmp_path, tamper)
    with pytest.warns(UserWarning, match="node 103 cannot join: num_examples"):
        told = announcements(wire, 3, 5, examples=True, devices=False)
        assert [hello.num_examples for hello in told] == job.num_examples[:3].tolist()
    with (
        pytest.warns(UserWarning, match="node 103 cannot join"),
        pytest.raises(RunError, match=r"clients \[3, 4\] did not join within 0 s"),
    ):
        announcements(wire, 5, 0, examples=True, devices=False)


def test_a_node_restarted_between_two_phases_is_left_out(tmp_path):
    wires = []
    make = memory_engine(tmp_path, wires)

    def forgets(job, stop):
        engine = make(job, stop)
        collect = engine.collect

        def collecting(clients):
            for context in wires[-1].contexts.values():
                if context.node_config["partition-id"] == 0:
                    context.state.clear()
            return collect(clients)

        engine.collect = collecting
        return engine

    job = fedplt(sampling={**OCS, "budget": 4.0})
    history, _ = final_state(job, engine=forgets)
    said = [record.rejected.get("0", "") for record in history.rounds]
    assert any("this node was restarted since it trained" in text for text in said)


def test_too_few_clients_do_not_count_and_are_tried_again(tmp_path):
    wires, rounds = [], []
    make = memory_engine(tmp_path, wires)

    def comes_back(job, stop):
        engine = make(job, stop)
        wires[-1].away.update({102, 103, 104})
        train = engine.train

        def training(round, *args, **options):
            rounds.append(round)
            if len(rounds) == 2:
                wires[-1].away.clear()
            return train(round, *args, **options)

        engine.train = training
        return engine

    _, tensors = final_state(fedplt())
    job = fedplt(server={"min_clients": 3}, engine={"round_timeout_seconds": 0.5})
    with pytest.warns(UserWarning, match="2 of at least 3 updates came"):
        _, others = final_state(job, engine=comes_back)
    assert rounds == [0, 0, 1, 2]
    assert same(tensors, others)


def test_attempts_end(tmp_path):
    job = fedplt(server={"min_clients": 6, "attempts": 2}, engine={"round_timeout_seconds": 0.1})
    with (
        pytest.warns(UserWarning, match="It is tried again"),
        pytest.raises(RunError, match="5 of at least 6 updates came"),
    ):
        run_job(job, engine=memory_engine(tmp_path))


def test_only_what_is_held_comes_down_and_only_what_is_trained_goes_up(tmp_path):
    for job in (fedplt(), image_job("heterofl", "cnn")):
        wires, down, up = [], {}, {}

        def tamper(node, action, header, arrays, up=up):
            if action == "train":
                up[node - 100] = {name: len(values) for name, values in arrays.items()}

        run_job(job, engine=memory_engine(tmp_path, wires, tamper=tamper))
        for order in wires[-1].sent:
            if order.action == "train":
                down[order.node - 100] = {name: len(v) for name, v in order.arrays.items()}
        for client in range(job.plan.num_clients):
            assignment = job.plan.assignment(client)
            assert down[client] == {"state": assignment.received.size}
            assert up[client] == {"update": assignment.update_size}
