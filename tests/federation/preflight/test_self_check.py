"""Same seed, same bits: with state that a model keeps, and with all global generators."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import fedplt
from fedplt import CutError
from fedplt.client import ClientTrainer
from fedplt.federation import check_job
from fedplt.federation.preflight import client_order, self_check
from fedplt.kernels import read_state
from fedplt.planning import FlatIndex
from tests.support.jobs import blob_job, blobs, small_model


class Keeping(nn.Module):
    """A small network around something that it keeps."""

    def __init__(self):
        super().__init__()
        self.inner = small_model()
        self.calls, self.last, self.many = 0, None, [0]
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x):
        return self.inner(self.changed(x))


class Counting(Keeping):
    def changed(self, x):
        self.calls += self.training
        return x * (1 + 0.1 * self.calls)


class Listing(Keeping):
    def changed(self, x):
        self.many[0] += 1
        return x * (1 + 0.1 * self.many[0])


class Alternating(Keeping):
    def changed(self, x):
        self.calls = not self.calls
        return -x if self.calls else x


class Drawing(Keeping):
    def changed(self, x):
        return x + 0.1 * torch.randn(x.shape, generator=self.generator)


class Remembering(Keeping):
    def changed(self, x):
        last, self.last = self.last, x.detach().mean(0)
        return x if last is None else x - 0.1 * last


class Rarely(Keeping):
    """Every fifth call: too late to show in a trial of a step."""

    def changed(self, x):
        self.calls += self.training
        return x.flip(1) if self.calls % 5 == 4 else x


class RarelyInAList(Keeping):
    def changed(self, x):
        self.many[0] += self.training
        return x.flip(1) if self.many[0] % 5 == 4 else x


class Logging(Keeping):
    """Keeps what it never computes with."""

    def changed(self, x):
        self.last = x
        return x


@pytest.mark.parametrize("kind", [Counting, Listing, Alternating, Drawing, Remembering])
def test_state_from_client_to_client_is_refused(kind):
    with pytest.raises(CutError, match=r"which of them is trained first[^#]+register_buffer"):
        check_job(blob_job(model=kind()))


class Noisy(Dataset):
    """Items with noise from a generator of the process, or of the Dataset."""

    def __init__(self, draw):
        self.inputs, self.labels = blobs(60)
        self.draw = draw

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.inputs[index] + 0.1 * float(self.draw()), int(self.labels[index])


def python_draw():
    return random.random()


def numpy_draw():
    return np.random.rand()


def noisy_augment(inputs, generator):
    return inputs + 0.1 * random.random() + 0.1 * np.random.standard_normal()


class NoisyModel(Keeping):
    def changed(self, x):
        return x + 0.1 * random.random() + 0.1 * float(np.random.rand())


def trained(kind=small_model, data=None, workers=1, resumed=None, **training):
    """The weights and scores after three rounds; ``resumed``: a folder, stopped after the first."""

    def run(rounds, **more):
        torch.manual_seed(0)
        model = kind()
        history = fedplt.train(
            model, data or blobs(60), data or blobs(30, 1), ratios=[1.0, 0.5, 0.5, 0.2],
            rounds=rounds, engine={"workers": workers},
            training={"learning_rate": 0.1, "batch_size": 8, **training}, **more,
        )  # fmt: skip
        return [*(p.tolist() for p in model.parameters()), history.scores[-1]]

    if resumed is not None:
        run(1, out=resumed)
        return run(3, out=resumed, resume=True)
    return run(3)


RANDOM = {
    "Dataset with random": {"data": Noisy(python_draw)},
    "Dataset with numpy.random": {"data": Noisy(numpy_draw)},
    "augmentation with both": {"augment": noisy_augment},
    "model with both": {"kind": NoisyModel},
}


@pytest.mark.parametrize("name", RANDOM)
def test_global_generators_are_seeded_for_each_client(name, tmp_path):
    random.seed(1)
    np.random.seed(1)
    wanted = trained(**RANDOM[name])
    random.seed(2)
    np.random.seed(2)
    assert trained(**RANDOM[name], workers=2) == wanted
    assert trained(**RANDOM[name], resumed=tmp_path / "run") == wanted


def test_the_caller_keeps_its_own_random_numbers():
    job = blob_job(model=NoisyModel())
    before = random.getstate(), np.random.get_state()[1].tolist()
    client_order.refuse_order(job)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.filterwarnings("ignore:attribute .* changes")
@pytest.mark.parametrize("kind", [Rarely, RarelyInAList])
def test_counters_that_do_not_show_at_once_are_put_back(kind, tmp_path):
    wanted = trained(kind)
    assert trained(kind, workers=2) == wanted
    assert trained(kind, resumed=tmp_path / "run") == wanted


def test_the_user_is_warned_of_such_counters():
    job = blob_job(model=Rarely())
    with pytest.warns(UserWarning, match="attribute calls changes in training"):
        client_order._updates(job, [client_order._order(job, 0, 0)], put_back=True)


class Odd(Keeping):
    """Numbers that are not equal to themselves, become tensors, or are deleted."""

    def __init__(self):
        super().__init__()
        self.limit, self.kept, self.gone = float("nan"), 0, 1

    def changed(self, x):
        self.kept = x
        vars(self).pop("gone", None)
        return x


def test_attributes_of_any_kind_are_put_back():
    job = blob_job(model=Odd())
    job.model.kept, job.model.gone = 0, 1  # it was run once
    with pytest.warns(UserWarning, match="attribute kept") as said:
        client_order._updates(job, [client_order._order(job, 0, 0)] * 2, put_back=True)
    assert not any("limit" in str(one.message) for one in said)


def test_a_list_that_modules_share_stays_shared():
    model = RarelyInAList()
    model.inner.seen = model.many
    layers = fedplt.cut(model)
    trainer = ClientTrainer(model, layers, read_state(model, layers), FlatIndex())
    model.many.append(3)
    model.calls = torch.ones(2)
    model.inner.seen = [1, 2]
    trainer.reset_buffers(warn=False)
    assert model.many == [0]
    assert model.calls == 0
    assert model.inner.seen is model.many


def test_a_generator_of_the_dataset_is_refused():
    with pytest.raises(CutError, match="numpy Generator"):
        trained(data=Noisy(np.random.default_rng(0).random))


def test_state_that_nothing_is_computed_with_is_no_matter():
    check_job(blob_job(model=Logging()))


def test_known_modules_and_data_are_not_tried(monkeypatch):
    tried = []
    monkeypatch.setattr(self_check, "refuse_order", tried.append)
    check_job(blob_job())
    assert not tried
    check_job(blob_job(model=Logging()))
    assert len(tried) == 1


def test_one_client_is_tried_in_two_rounds():
    with pytest.raises(CutError, match="trained first"):
        check_job(blob_job([0.5], model=Counting()))
