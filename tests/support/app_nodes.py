"""A Flower app in this process: real messages and a real client app, and a grid between them."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import optim
from torch.nn.functional import cross_entropy

from fedplt.client.local_training import batches
from fedplt.models import MODELS
from fedplt.seeds import generator
from fedplt_flower import FedPLT, SlicesApp, train_slices
from fedplt_flower.records import from_records, to_records
from tests.support import flower_identity  # noqa: F401 (messages need one)
from tests.support.image_jobs import IMAGE_RATIOS, SMALL, image_job, images
from tests.support.jobs import RATIOS, blobs, small_model


class MemoryGrid:
    """Client k is node 100 + k. ``tamper(node, type, header, arrays)`` may change its replies."""

    def __init__(self, app, num_clients, tamper=None):
        self.app, self.tamper = app, tamper
        self.contexts = {
            100 + k: Context(1, 100 + k, {"partition-id": k}, RecordDict(), {})
            for k in range(num_clients)
        }
        self.sent, self.replies = [], {}

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message):
        name = str(len(self.sent))
        message.metadata._message_id = name
        self.sent.append(message)
        node = message.metadata.dst_node_id
        reply = self.app(message, self.contexts[node])
        if self.tamper is not None and "fedplt" in reply.content.config_records:
            header, arrays = from_records(reply.content)
            arrays = {key: np.array(value) for key, value in arrays.items()}
            changed = self.tamper(node, message.metadata.message_type, header, arrays)
            if changed is not None:
                reply = Message(to_records(*changed), reply_to=message)
        self.replies[name] = reply
        return name

    def pull_messages(self, ids):
        return [self.replies.pop(name) for name in list(ids) if name in self.replies]

    def types(self):
        return [message.metadata.message_type for message in self.sent]


def app_of(job, make_model=small_model, *, over="model", seen=None):
    """An app in the layout of Flower's quickstart, on a job's data and with its batches.

    ``over``: what its optimizer is made from, the model's parameters or the part's. ``seen`` gets
    the configuration of every training message.
    """
    app = SlicesApp()

    def train(net, parameters, client, round):
        settings, samples = job.training.settings, job.samples
        examples, total, number = job.examples(client), 0.0, 0
        optimizer = optim.SGD(parameters, lr=job.learning_rate(client, round), momentum=0.9)
        net.train()
        random = generator(job.config.seed, "batches", round=round, client=client)
        for indices in batches(len(examples), settings, random):
            inputs, targets = samples.batch(indices + examples.start)
            optimizer.zero_grad()
            loss = cross_entropy(net(inputs), targets)
            loss.backward()
            optimizer.step()
            total, number = total + loss.item(), number + 1
        return total / number

    @app.train()
    def train_on_client(message, context):
        client = context.node_config["partition-id"]
        config = message.content["config"]
        if seen is not None:
            seen.append(dict(config))
        with train_slices(message, context, make_model()) as part:
            parameters = part.model.parameters() if over == "model" else part.parameters()
            loss = train(part.model, parameters, client, config["server-round"] - 1)
        return part.reply(num_examples=len(job.examples(client)), train_loss=loss)

    @app.evaluate()
    def evaluate_on_client(message, context):
        model = make_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.eval()
        inputs, targets = job.validation.batch(torch.arange(len(job.validation)))
        right = (model(inputs).argmax(1) == targets).float().mean().item()
        client = context.node_config["partition-id"]
        metrics = MetricRecord({"eval_acc": right, "eval_loss": 1.0, "num-examples": 10 + client})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def arrays_of(model):
    return ArrayRecord(model.state_dict())


def example():
    return blobs(8)[0]


def started(job, strategy, grid, **options):
    return strategy.start(grid, arrays_of(job.model), num_rounds=job.config.rounds, **options)


def small_strategy(**options):
    return FedPLT(small_model(), example(), **{"ratios": RATIOS, **options})


def image_case(method, model, **settings):
    training = {"batch_size": 16, "learning_rate": 0.05, "momentum": 0.9}
    job = image_job(method, model, training=training, **settings)
    strategy = FedPLT(
        SMALL[model][0](), images(8, 1).inputs, ratios=IMAGE_RATIOS,
        method=job.config.method, cut={"groups": dict(MODELS[model].groups)},
    )  # fmt: skip
    return job, strategy, SMALL[model][0]
