"""A Flower app in the layout of its PyTorch quickstart, with FedAvg; and changes shown as diffs."""

from __future__ import annotations

import re
from pathlib import Path

from fedplt_flower.app.scaffold import init_app

CLIENT_APP = '''\
"""A Flower app with PyTorch: what a client does."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data
from quickstart.task import test as test_fn
from quickstart.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id, batch_size = context.node_config["partition-id"], context.run_config["batch-size"]
    trainloader, _ = load_data(partition_id, batch_size)
    epochs, lr = context.run_config["local-epochs"], msg.content["config"]["lr"]
    train_loss = train_fn(model, trainloader, epochs, lr)
    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    arrays = ArrayRecord(model.state_dict())
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id, batch_size = context.node_config["partition-id"], context.run_config["batch-size"]
    _, valloader = load_data(partition_id, batch_size)
    eval_loss, eval_acc = test_fn(model, valloader)
    metrics = {
        "eval_loss": eval_loss,
        "eval_acc": eval_acc,
        "num-examples": len(valloader.dataset),
    }
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
'''

SERVER_APP = '''\
"""A Flower app with PyTorch: what the server does."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    global_model = Net()
    arrays = ArrayRecord(global_model.state_dict())
    strategy = FedAvg()
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    torch.save(result.arrays.to_torch_state_dict(), Path(context.run_config["out"], "final.pt"))
'''


def make_quickstart(folder: Path) -> Path:
    """The app with FedAvg, with the model and data of ``fedplt flower init``."""
    app = folder / "quickstart"
    package = app / init_app(app)
    (package / "client_app.py").write_text(CLIENT_APP)
    (package / "server_app.py").write_text(SERVER_APP)
    return app


def shown_changes() -> dict[str, str]:
    """The diffs of docs/flower.md by file name."""
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    return dict(re.findall(r"`(\w+\.py)`:\n\n```diff\n(.*?)```", page, re.DOTALL))


def apply(change: str, path: Path) -> int:
    """Apply a diff whose hunks are separated by ``@@``; return the number of lines it adds."""
    text, added = path.read_text(), 0
    for hunk in change.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if not line.startswith("+"))
        new = "".join(line[1:] for line in lines if not line.startswith("-"))
        assert text.count(old) == 1, f"not once in {path.name}:\n{old}"
        text = text.replace(old, new)
        added += sum(line.startswith("+") for line in lines)
    path.write_text(text)
    return added
