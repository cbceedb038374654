"""What reads inputs from elsewhere, and strategies for what may come: for ``fuzz.py``.

A target takes an input and either accepts it or raises a FedpltError. Everything else is a
finding.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from hypothesis import strategies as st
from tests.support.jobs import blob_job
from tests.support.tiny import CONFIG
from tools.reliability.bad_clients import sound, taken
from tools.reliability.fuzz_inputs import ODD_TEXTS, SCALARS, changed_text, changed_values, paths

from fedplt.configuration import override, parse_config, parse_toml, read_fleet
from fedplt.configuration.config_file import load_config, read_config
from fedplt.data.decode import _idx
from fedplt.data.samples import TensorSamples
from fedplt.errors import ConfigError, RunError
from fedplt.federation import plan_without_data, read_devices, read_sessions, split_data
from fedplt.federation.run_folder.checkpoint import _about
from fedplt.federation.run_folder.records import RoundRecord, Totals
from fedplt.federation.run_folder.records_file import RecordsFile
from fedplt.federation.run_folder.results import read_result
from fedplt.federation.run_folder.sealed import load_tensors, open_json, save_tensors, seal_json
from fedplt.methods import read_plan
from fedplt.planning import Plan

RUN = "0123456789abcdef"
KIND = "record"
Call = Callable[[Any], object]


@dataclass(frozen=True)
class Target:
    """A strategy for inputs, and what reads them."""

    inputs: st.SearchStrategy[Any]
    call: Call


@cache
def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="fedplt-fuzz-"))


def _file(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.write_bytes(data)
    return path


@cache
def job() -> Any:
    return blob_job()


@cache
def config_values() -> dict[str, Any]:
    return read_config(CONFIG, "tiny").model_dump(exclude_none=True, mode="json")


def record_values() -> dict[str, Any]:
    sampling = {
        "budget": 4.0, "expected_cost": 4.0, "cost": 3.0, "num_trained": 5, "num_chosen": 3,
        "chosen": [0, 1, 2], "probabilities": [0.5, 0.5, 1.0], "variance": 1.0,
    }  # fmt: skip
    layer = {"update_magnitude": 1.0, "effective_perturbation": 0.5, "never_trained": 0}
    moved = {"update_magnitude": 1.0, "layers": {"0": layer}}
    total = Totals(1, 2, 3, 4.0)
    record = RoundRecord(
        1, 5, 1.0, total, total, 0.1, score=0.5, loss=1.0, client_scores={"mean": 0.5},
        dropped=[1], late=[2], rejected={"3": "why"}, sampling=sampling, diagnostics=moved,
    )  # fmt: skip
    return record.to_json()


def sealed(values: dict[str, Any], kind: str) -> str | None:
    """With a right seal, where JSON can say it."""
    try:
        return seal_json(values, RUN, kind)
    except (ValueError, TypeError, RecursionError):
        return None


def _records(values: dict[str, Any]) -> None:
    if (line := sealed(values, KIND)) is not None:
        RecordsFile(_file("rounds.jsonl", f"{line}\n".encode()), RUN).read()


def _result(values: dict[str, Any]) -> None:
    if (text := sealed(values, "result")) is not None:
        read_result(_file("result.json", text.encode()), RUN)


def _sessions(values: dict[str, Any]) -> None:
    if (text := sealed(values, "sessions")) is not None:
        read_sessions(_file("sessions.json", text.encode()).parent, RUN)


def _devices(values: dict[str, Any]) -> None:
    if (text := sealed(values, "devices")) is not None:
        read_devices(_file("devices.json", text.encode()).parent, RUN)


def _plan(values: dict[str, Any]) -> None:
    """As ``RunFolder.plan`` reads it."""
    try:
        plan = read_plan(json.loads(json.dumps(values)))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise RunError(str(error)) from error  # refused with an error by the folder
    assert isinstance(plan, Plan)


def _checkpoint(values: dict[str, Any]) -> None:
    path = scratch() / "checkpoint.safetensors"
    try:
        save_tensors(path, {"state": torch.zeros(3)}, values, RUN, "checkpoint")
    except (ValueError, TypeError, RecursionError):
        return  # what JSON cannot say
    _, about = load_tensors(path, "checkpoint", RUN)
    _about(path, about)


def _split(data: bytes) -> None:
    path = str(_file("split.json", data))
    values = config_values()
    values = {**values, "data": {**values["data"], "split": "given", "split_file": path}}
    split_data(parse_config(values), TensorSamples(torch.zeros(9, 1), torch.zeros(9).long()))


DEVICES = "name,count,gflops,mbps_down,mbps_up,latency_ms\nfast,1,1,100,100,0\nslow,2,0.1,9,9,0\n"
DEVICES_TOML = """
[work]
local_steps = 16
[target]
min_ratio = 0.1
[[device]]
name = "phone"
count = 2
speed = "10 GFLOPS"
down = "10 Mbps"
up = "1 Mbps"
"""
SPLIT = json.dumps([[0, 1, 2], [3, 4], [5, 6], [7], [8]])
TIME = {"latency": 0.1, "download": 1.0, "forward": 1.0, "backward": 2.0, "upload": 1.0}
DEVICE = {"name": "phone", "clients": [0, 1], "ratio": 0.5, "planned": TIME, "full": TIME}
SESSION = {
    "started": "2026-01-01T00:00:00+00:00", "first_round": 1, "python": "3.11.7",
    "packages": {"fedplt": "0.1.0"}, "system": "Linux", "processor": "x", "cores": 2,
    "memory_bytes": 2**30,
}  # fmt: skip
IDX = b"\0\0\x08\x03" + (2).to_bytes(4, "big") + (2).to_bytes(4, "big") * 2 + bytes(8)


def _bytes_of(data: bytes) -> st.SearchStrategy[bytes]:
    return changed_text(data.decode("latin-1")).map(
        lambda text: text.decode("utf-8", "replace").encode("latin-1", "replace")
    )


TARGETS: dict[str, Target] = {
    "configuration, text": Target(
        changed_text(CONFIG), lambda data: load_config(_file("config.toml", data))
    ),
    "configuration, values": Target(
        changed_values(config_values()), parse_config
    ),
    "configuration, to a plan": Target(
        changed_values(config_values()), lambda values: plan_without_data(parse_config(values))
    ),
    "--set": Target(
        st.tuples(
            st.sampled_from([".".join(map(str, path)) for path in paths(config_values(), ())]),
            st.one_of(st.text(max_size=30), ODD_TEXTS, SCALARS.map(repr)),
        ).map("=".join),
        lambda text: override(read_config(CONFIG, "tiny"), [text]),
    ),
    "records": Target(changed_values(record_values()), _records),
    "result": Target(
        changed_values({"format": 2, "rounds": 3, "score_last_10": 0.5, "test_loss": 1.0}),
        _result,
    ),
    "sessions": Target(changed_values({"format": 2, "sessions": [SESSION]}), _sessions),
    "devices of a run": Target(changed_values({"devices": [DEVICE]}), _devices),
    "plan": Target(changed_values(job().plan.to_json()), _plan),
    "checkpoint": Target(
        changed_values(
            {"format": 2, "rounds_done": 3, "total": vars(Totals()), "plan": "x", "data": "y",
             "devices": None, "config": CONFIG}
        ),
        _checkpoint,
    ),
    "sealed text": Target(
        changed_text(seal_json(record_values(), RUN, KIND)),
        lambda data: open_json(data.decode("utf-8", "replace"), KIND, "it", RUN),
    ),
    "devices, CSV": Target(
        changed_text(DEVICES), lambda data: read_fleet(_file("devices.csv", data))
    ),
    "devices, TOML": Target(
        changed_text(DEVICES_TOML), lambda data: read_fleet(_file("devices.toml", data))
    ),
    "split file": Target(changed_text(SPLIT), _split),
    "client update": Target(_bytes_of(sound()), taken),
    "IDX file": Target(_bytes_of(IDX), lambda data: _idx(_file("it-idx3-ubyte", data))),
}  # fmt: skip

DECODERS: dict[str, Callable[[bytes], object]] = {
    "client update": taken,
    "IDX file": lambda data: _idx(_file("it-idx3-ubyte", data)),
    "TOML": lambda data: parse_toml(data.decode("utf-8", "replace"), "it", ConfigError),
    "sealed text": lambda data: open_json(data.decode("utf-8", "replace"), KIND, "it", RUN),
    "devices, CSV": lambda data: read_fleet(_file("devices.csv", data)),
    "tensors": lambda data: load_tensors(_file("it.safetensors", data), KIND),
}
"""Take bytes alone: for a fuzzer that is guided by coverage."""

EXAMPLES: dict[str, bytes] = {
    "client update": sound(),
    "IDX file": IDX,
    "TOML": CONFIG.encode(),
    "sealed text": seal_json(record_values(), RUN, KIND).encode(),
    "devices, CSV": DEVICES.encode(),
    "tensors": safetensors.torch.save({"state": torch.zeros(3)}, {"fedplt": "{}"}),
}
"""A valid input of each, to start from."""
