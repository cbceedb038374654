"""The files of an app that ``fedplt flower init`` writes; ``$name`` and others are filled in."""

from __future__ import annotations

CONFIG = """\
# Change these for one run: flwr run . local --stream -c "num-server-rounds=10"
[tool.flwr.app.config]
num-server-rounds = 5
local-epochs = 1
batch-size = 16
learning-rate = 0.05
# The fraction of the model that each client trains; client k is the node with partition-id k.
ratios = "1.0 0.5 0.25 0.1"
# A folder for records, checkpoints and the final model (an absolute path); empty: none.
out = ""
"""

LICENSE = """\
Write your license here. Flower's build needs this file.
"""

README = """\
# $name

A Flower app in which every client trains a slice of the model, sized to its device (FedPLT).

```
flwr run . local --stream --federation-config "num-supernodes=4 client-resources-num-cpus=1"
```

Run it in the Python environment where fedplt is installed. `num-supernodes` is the number of
`ratios` in `pyproject.toml`. The app runs without changes, with a synthetic data set. To make it
yours:

| file | fill in |
|---|---|
| `$package/task.py` | your model, your data, your training loop, your evaluation |
| `$package/server_app.py` | an example input of the model; the method and the sampler |
| `$package/client_app.py` | nothing, unless your loop takes other arguments |
| `pyproject.toml` | the clients' ratios, rounds, your publisher name, packages to install per run |
| `LICENSE` | your licence |

Flower installs the dependencies of `pyproject.toml` for every run, which takes seconds and needs a
package index. `export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1`, before the first `flwr run`,
switches that off.

Records and the final model: `-c "out='/absolute/folder'"`, then `fedplt report /absolute/folder`.
"""

TASK = '''\
"""The model, the data and the training loop: replace them by your own."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 4


class Net(nn.Module):
    """A small convolutional network for images of 1 x 8 x 8."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.hidden = nn.Linear(16 * 4 * 4, 32)
        self.head = nn.Linear(32, NUM_CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return self.head(F.relu(self.hidden(x.flatten(1))))


def example_input():
    """A batch of inputs, of any values: the server traces the model with it."""
    return torch.zeros(2, 1, 8, 8)


def images(number, seed):
    """Noise with one bright row, which tells the class."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_CLASSES, (number,), generator=random)
    inputs = 0.5 * torch.randn(number, 1, 8, 8, generator=random)
    inputs[torch.arange(number), 0, 2 * labels] += 1
    return TensorDataset(inputs, labels)


def load_data(partition_id, batch_size):
    """The data of one client, for training and for evaluation."""
    random = torch.Generator().manual_seed(partition_id)  # the order of batches
    train_data = images(200, seed=2 * partition_id)
    test_data = images(50, seed=2 * partition_id + 1)
    return (
        DataLoader(train_data, batch_size, shuffle=True, generator=random),
        DataLoader(test_data, batch_size),
    )


def train(net, loader, epochs, lr):
    """Train; net.parameters() are what this client trains. Return the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    losses = []
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net, loader):
    """The mean loss and the accuracy."""
    net.eval()
    loss = right = 0.0
    with torch.no_grad():
        for inputs, labels in loader:
            outputs = net(inputs)
            loss += F.cross_entropy(outputs, labels, reduction="sum").item()
            right += (outputs.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), right / len(loader.dataset)
'''

CLIENT_APP = '''\
"""What a client does: train the slices it is assigned, and evaluate the whole model."""

from fedplt.engines.flower import SlicesApp, train_slices
from flwr.app import Context, Message, MetricRecord, RecordDict

from $package.task import Net, load_data
from $package.task import test as test_fn
from $package.task import train as train_fn

app = SlicesApp()


@app.train()
def train(msg: Message, context: Context):
    loader, _ = load_data(context.node_config["partition-id"], context.run_config["batch-size"])
    with train_slices(msg, context, Net()) as part:
        loss = train_fn(
            part.model, loader, context.run_config["local-epochs"], msg.content["config"]["lr"]
        )
    return part.reply(num_examples=len(loader.dataset), loss=loss)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    _, loader = load_data(context.node_config["partition-id"], context.run_config["batch-size"])
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loss, accuracy = test_fn(model, loader)
    metrics = {"loss": loss, "accuracy": accuracy, "num-examples": len(loader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
'''

SERVER_APP = '''\
"""What the server does: plan who trains what, and run the rounds."""

import torch
from fedplt.engines.flower import FedPLT
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from $package.task import Net, example_input

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    torch.manual_seed(0)
    model = Net()
    strategy = FedPLT(
        model,
        example_input(),
        ratios=[float(ratio) for ratio in str(config["ratios"]).split()],
        method="fedplt",  # or "heterofl", "fedrolex", "fedbn", ...
        sampling={"name": "all"},  # or {"name": "fedplt-ocs", "budget": 1.0}
        out=config["out"] or None,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    print(result)
'''
