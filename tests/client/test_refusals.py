"""What is refused inside a block says what was given, what is allowed and what to do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import fedplt
from fedplt import CutError, bind_state, cut
from tests.support.block_battery import Model, block, straight, two


def test_optimizers_of_the_models_own_parameters():
    model = Model(straight, **two())
    before = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    with block(model) as part:
        model(torch.randn(5, 6)).sum().backward()
        for optimizer in (before, torch.optim.SGD(model.a.parameters(), lr=0.1)):
            with pytest.raises(CutError, match=r"give it part\.parameters\(\)"):
                optimizer.step()
        later = torch.optim.AdamW(part.parameters())
        later.step()
        later.add_param_group({"params": [model.a.weight]})
        with pytest.raises(CutError, match=r"give it part\.parameters\(\)"):
            later.step()
    before.step()  # after the block it is an ordinary model


class Clipped(torch.optim.Adafactor):
    """A user's own, of a kind that is refused."""


class Shampoo(torch.optim.SGD):
    """Known by its name, as those of other packages."""


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.Muon, Clipped, Shampoo])
def test_optimizers_of_whole_matrices(kind):
    model = Model(straight, **two())
    with block(model) as part:
        model(torch.randn(5, 6)).sum().backward()
        matrices = [p for p in part.parameters() if p.ndim == 2]
        with pytest.raises(CutError, match=f"{kind.__name__} treats a matrix as a whole"):
            kind(matrices).step()


def swapped(model, x):
    torch.utils.swap_tensors(model.a.weight, nn.Parameter(model.a.weight.detach().clone()))
    return straight(model, x)


def moved(model, x):
    with torch.no_grad():
        model.a.weight.set_(model.a.weight.clone())
    return straight(model, x)


@pytest.mark.parametrize("forward", [swapped, moved])
def test_parameters_in_other_memory(forward):
    model = Model(forward, **two())
    with pytest.raises(CutError, match=r"a\.weight was moved to other memory"), block(model):
        model(torch.randn(5, 6))


def test_weights_that_change_between_the_passes():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    convolution = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1))
    for one, x in ((model, torch.randn(5, 6)), (convolution, torch.randn(5, 1, 2, 2))):
        with block(one, 1.0):
            loss = one(x).sum()
            with torch.no_grad():
                one[-1].weight.mul_(2)
            with pytest.raises(CutError, match=r"weight was changed in place between"):
                loss.backward()


def test_losses_that_lost_their_gradient():
    model = Model(straight, **two())
    for forward in (lambda x: model(x).detach(), lambda x: make_fx(model)(x)(x).detach()):
        with block(model) as part, pytest.raises(CutError, match=r"although a\.weight was used"):
            part.backward(forward(torch.randn(5, 6)).sum())


def hidden(model, x):
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(lambda: model.b(torch.tanh(model.a(x)))).result()
    return model.b(model.a(x)) + other


def test_uses_of_a_weight_in_another_thread():
    model = Model(hidden, **two())
    with block(model, 1.0) as part, pytest.raises(CutError, match="in another thread"):
        part.fuse_sgd(0.1)
        part.backward(model(torch.randn(5, 6)).sum())
    with block(model, 1.0):
        model(torch.randn(5, 6)).sum().backward()  # nothing is fused


def test_types_that_change_in_forward():
    model = Model(lambda m, x: m.a.double()(x.double()), a=nn.Linear(6, 8))
    with pytest.raises(CutError, match=r"Change shapes and types before the block"), block(model):
        model(torch.randn(5, 6))
    assert model.a.weight.dtype == torch.float32


def test_views_that_were_made_before():
    model = Model(lambda m, x: m.b(x @ m.view), **two())
    model.view = model.a.weight.T
    layers = cut(model)
    with pytest.raises(CutError, match=r"view is a view of a\.weight"):
        bind_state(model, layers)


def test_a_model_that_fails_without_us():
    def forward(model, x):
        hidden = model.a(x).sigmoid()
        outputs = model.b(hidden)
        hidden.mul_(2)
        return outputs

    with pytest.raises(CutError, match="an ordinary training step of the whole model fails"):
        fedplt.check(Model(forward, **two()), torch.randn(5, 6))


def averages(model, x):
    pairs = zip(model.teacher.parameters(), model.a.parameters(), strict=True)
    with torch.no_grad():
        for mine, other in pairs if model.training else ():
            mine.mul_(0.9).add_(other, alpha=0.1)
    return model.a(x) - 0.5 * model.teacher(x).detach()


def renormalized(model, x):
    return model.a(F.embedding(x.argmax(1), model.table, max_norm=0.5))


@pytest.mark.filterwarnings("ignore:.* is not trained, but the model changes it")
@pytest.mark.parametrize("forward", [averages, renormalized])
def test_frozen_parameters_that_the_model_changes_are_put_back(forward):
    results = []
    for workers in (1, 2):
        torch.manual_seed(0)
        frozen = nn.Linear(6, 3).requires_grad_(False)
        table = nn.Parameter(torch.randn(6, 6), requires_grad=False)
        model = Model(forward, a=nn.Linear(6, 3), teacher=frozen, table=table)
        x = torch.randn(60, 6)
        data = (x, (x[:, 0] > 0).long())
        ratios, engine = [0.4] * 4, {"workers": workers}
        fedplt.train(model, data, data, ratios=ratios, rounds=2, engine=engine)
        results.append({name: value.clone() for name, value in model.state_dict().items()})
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


@pytest.mark.parametrize("function", [torch.batch_norm, torch.instance_norm])
def test_statistics_of_untrained_channels_in_torchs_own_functions(function):
    def forward(model, x):
        norm = model.n
        statistics = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        return model.b(function(model.a(x), *statistics, True, 0.1, 1e-5, False).mean(-1))

    torch.manual_seed(0)
    kind = nn.BatchNorm1d if function is torch.batch_norm else nn.InstanceNorm1d
    norm = kind(8, affine=True, track_running_stats=True)
    model = Model(forward, a=nn.Conv1d(6, 8, 1), n=norm, b=nn.Linear(8, 4))
    with block(model) as part:
        model(torch.randn(5, 6, 3))
        rows = part.slices[id(norm.weight)].rows
    trained = torch.zeros(8, dtype=torch.bool)
    for start, stop in rows:
        trained[start:stop] = True
    assert torch.equal(norm.running_mean != 0, trained)


def test_checkpoint_in_another_thread():
    model, x = Model(straight, **two()), torch.randn(5, 6)
    with block(model), ThreadPoolExecutor(1) as pool:
        out = pool.submit(checkpoint, model, x, use_reentrant=False).result()
        with pytest.raises(CutError, match="thread"):
            out.sum().backward()


def test_evaluation_then_training_before_the_backward_pass():
    """Torch computes the first pass's gradients with the statistics of the second."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with block(model, 1.0):
        first = model.eval()(torch.randn(5, 6))
        loss = (first + model.train()(torch.randn(5, 6))).sum()
        with pytest.raises(CutError, match="evaluation mode"):
            loss.backward()
