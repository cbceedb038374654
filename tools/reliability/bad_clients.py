"""Attack: updates that anybody may send, and a client that lies about itself.

``python -m tools.reliability.bad_clients 100000 1`` reads so many damaged updates. :func:`taken` is
the entry for other fuzzers.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
import traceback
from functools import cache

import numpy as np
import torch
from tests.support.jobs import blob_data, small_model
from tools.reliability.attacks import boastful, with_bad
from torch import nn

from fedplt import ClientUpdate, cut, make_plan, validate
from fedplt.client import Origin
from fedplt.configuration import parse_config
from fedplt.errors import UpdateError
from fedplt.federation import make_job
from fedplt.federation.start import run_job
from fedplt.planning import Assignment

TEXTS = (
    b"[" * 3000,
    b"9" * 4000,
    b"1e999",
    b"NaN",
    b"-1",
    b"null",
    b"true",
    b'"\\ud800"',
    b"{}",
    b"\xff",
)
ROUNDS = 30
ORIGIN = Origin(1, 3, "0123456789abcdef")


@cache
def assignment() -> Assignment:
    return make_plan(cut(nn.Linear(3, 8)), [0.5]).assignment(0)


@cache
def sound() -> bytes:
    values = np.linspace(-1, 1, assignment().update_size, dtype=np.float32)
    return ClientUpdate(values, 20, 1.0, {"loss": 0.5}, ORIGIN).to_bytes()


def taken(data: bytes) -> ClientUpdate:
    """The update in these bytes, as the server takes it; UpdateError refuses them."""
    update = ClientUpdate.from_bytes(data)
    validate(update, assignment(), origin=ORIGIN, num_examples=20, max_rms=10.0)
    return update


def damaged(draw: random.Random) -> bytes:
    """A sound update with some bytes changed, left out, repeated, or replaced by odd texts."""
    data = bytearray(sound())
    for _ in range(draw.randint(1, 4)):
        place, length = draw.randrange(len(data) + 1), draw.randint(0, 40)
        new = draw.choice(
            [draw.randbytes(length), draw.choice(TEXTS), bytes(data[: 3 * length]), b""]
        )
        data[place : place + length] = new
    if draw.random() < 0.5:  # a header of the right length, so that the rest is looked at
        end = data.rfind(b"}") + 1
        data[:8] = max(0, end - 8).to_bytes(8, "little")
    return bytes(data)


def run(count: int, seed: int) -> dict[str, float]:
    """Read ``count`` damaged updates; then a run with one client that claims 10^12 examples."""
    draw = random.Random(seed)
    keys = ("inputs", "accepted", "refused with an error", "tracebacks", "over 10 s")
    figures: dict[str, float] = dict.fromkeys(keys, 0)
    for _ in range(count):
        data, began = damaged(draw), time.perf_counter()
        figures["inputs"] += 1
        try:
            taken(data)
            figures["accepted"] += 1
        except UpdateError:
            figures["refused with an error"] += 1
        except Exception:  # any other exception is a finding
            figures["tracebacks"] += 1
            traceback.print_exc()
        figures["over 10 s"] += time.perf_counter() - began > 10
    figures["peak memory, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {**figures, **boast(seed)}


def boast(seed: int) -> dict[str, float]:
    """The score without and with a client that is sign-flipped and claims 10^12 examples."""

    def score(bad: list[int]) -> tuple[float, int]:
        values = {
            "seed": seed,
            "rounds": ROUNDS,
            "clients": {"num_clients": 5},
            "data": {"name": "blobs", "alpha": 0.5},
            "training": {"learning_rate": 0.1, "batch_size": 16},
            "engine": {"workers": 1, "check": False},
        }
        torch.manual_seed(seed)
        job = make_job(
            parse_config(values), small_model(), blob_data(), ratios=[1, 0.5, 0.5, 0.2, 0.2]
        )
        history = run_job(job, engine=with_bad(bad, boastful))
        return history.rounds[-1].score or 0.0, sum(len(r.rejected) for r in history.rounds)

    honest, _ = score([])
    attacked, refused = score([1])
    return {
        "accuracy without a bad client": round(honest, 3),
        "with one that claims 10^12 examples": round(attacked, 3),
        "updates it sent": ROUNDS,
        "of them refused": refused,
    }


if __name__ == "__main__":
    found = run(int(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["tracebacks"] or found["over 10 s"]))
