"""Flower's simulation of all clients on this machine, started and ended by the run."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedplt.configuration import FROM_PYTHON, dump_config
from fedplt.errors import RunError
from fedplt.federation import Interrupted, Job
from fedplt.files import write_text
from fedplt.fleet import available_cores
from fedplt.kernels import read_state, take
from fedplt_flower.app.scaffold import app_files
from fedplt_flower.node.local_state import StateFiles
from fedplt_flower.processes import end_all, environment, free_port, run_flwr
from fedplt_flower.server.engine import FlowerEngine
from fedplt_flower.server.grid_socket import SocketWire

START_SECONDS = 600.0
"""Flower and Ray start within seconds, unless the machine is busy."""
RESTORED = 2**30
"""Stands for the round in the names of local state files restored from a checkpoint."""
APP = "fedplt-simulation"
ORDERS_PER_WORKER = 5
"""Unanswered orders per worker; several, as Flower polls for new ones only every 0.1 seconds."""


class FlowerSimulation(FlowerEngine):
    """Starts a SuperLink with Flower's simulation on a free port, for this run only."""

    def __init__(self, job: Job, stop: Callable[[], bool] = lambda: False) -> None:
        if FROM_PYTHON in (job.config.model.name, job.config.data.name):
            raise RunError(
                "engine.name = 'flower' needs a model and data that its processes can make: name "
                "functions by import path in a configuration (model.name, data.name) and use "
                "fedplt.run."
            )
        if job.config.fleet is not None and job.config.fleet.replan != "never":
            raise RunError(
                "fleet.replan = 'on-change' is for deployments: simulated nodes neither join nor "
                "leave, and have no devices. Leave it out."
            )
        self._workers = job.config.engine.workers or available_cores()
        self._folder = Path(tempfile.mkdtemp(prefix="fedplt-flower-"))
        self._address = self._folder / "socket"
        timeout = job.config.engine.timeout_seconds
        self._socket = SocketWire(self._address, ORDERS_PER_WORKER * self._workers, timeout)
        super().__init__(job, self._socket, stop)
        self.nodes.hello_seconds = START_SECONDS
        self._superlink: subprocess.Popen[bytes] | None = None
        try:
            self._start()
            self.nodes.wait(job.plan.num_clients, START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def _states(self) -> Path:
        return self._folder / "states"

    def _start(self) -> None:
        folder = self._folder
        self._write_app(folder / "app")
        home, port = folder / "home", free_port()
        home.mkdir()
        address = f"127.0.0.1:{port}"
        write_text(
            home / "config.toml",
            f'[superlink]\ndefault = "run"\n\n[superlink.run]\naddress = "{address}"\n'
            "insecure = true\n",
        )
        with (folder / "superlink.log").open("wb") as log:
            self._superlink = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("flower-superlink")),
                    "--insecure", "--simulation", "--disable-runtime-dependency-installation",
                    "--host", "127.0.0.1", "--port", str(port),
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=environment(home), start_new_session=True,
            )  # fmt: skip
        self._wait_for(lambda: _answers(port), "Flower's SuperLink did not start")
        number = self.job.plan.num_clients
        settings = (
            f"num-supernodes={number} client-resources-num-cpus=1 client-resources-num-gpus=0.0 "
            f"init-args-num-cpus={self._workers}"
        )
        run_flwr(home, "run", str(folder / "app"), "run", "--federation-config", settings)
        self._wait_for(lambda: self._socket.accept(0.5), "Flower did not start the simulation")

    def _wait_for(self, ready: Callable[[], bool], otherwise: str) -> None:
        ends = time.monotonic() + START_SECONDS
        assert self._superlink is not None
        while not ready():
            if self.stop():
                raise Interrupted
            if self._superlink.poll() is not None or time.monotonic() > ends:
                raise RunError(f"{otherwise}. The end of its log:\n{self.log()[-2000:]}")
            time.sleep(0.1)

    def log(self) -> str:
        """The output of Flower's processes."""
        path = self._folder / "superlink.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _write_app(self, folder: Path) -> None:
        config = self._folder / "run.toml"
        write_text(config, dump_config(self.job.config))
        about = "Relays orders between fedplt and Flower's simulated nodes"
        server = (
            "from fedplt_flower.server.server_app import simulation_app\n\n"
            f"app = simulation_app({str(self._address)!r})\n"
        )
        client = (
            "from fedplt_flower.node.client_app import simulated_client_app\n\n"
            f"app = simulated_client_app({str(config)!r}, {str(self._states)!r})\n"
        )
        modules = {"server_app": server, "client_app": client}
        for name, text in app_files(APP, about, modules).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, text)

    # Everything is on this machine: local states go into the run's checkpoint, so that another
    # engine can continue the run.

    def oldest_state_round(self, client: int) -> int:
        return int(self.local_state_round[client])

    def local_tensors(self) -> dict[str, Tensor]:
        layers, plan = self.job.layers, self.job.plan
        sizes = {"kept": plan.local_index.size} if plan.local else {}
        if self.job.config.messages.up != "float32":
            sizes["residual"] = layers.state_size
        saved = {
            client: StateFiles(self._states, client).load(round, sizes)
            for client, round in enumerate(self.local_state_round.tolist())
            if round >= 0 and sizes
        }
        found = {
            f"residual.{k}": each["residual"] for k, each in saved.items() if "residual" in each
        }
        if plan.local:
            first = {"kept": take(read_state(self.job.model, layers), plan.local_index)}
            rows = [saved.get(client, first)["kept"] for client in range(plan.num_clients)]
            found["local"] = torch.stack(rows)
        return found

    def restore_local(self, tensors: Mapping[str, Tensor]) -> None:
        none = torch.zeros(self.job.layers.state_size)
        for client in range(self.job.plan.num_clients):
            state = {"kept": tensors["local"][client].clone()} if self.job.plan.local else {}
            if self.job.config.messages.up != "float32":
                state["residual"] = tensors.get(f"residual.{client}", none)
            if "messages.reference" in tensors and tensors["messages.exact"][client]:
                state["reference"] = tensors["messages.reference"]
            if state:
                StateFiles(self._states, client).save(RESTORED, state)
                self.local_state_round[client] = RESTORED

    def close(self) -> None:
        super().close()
        if self._superlink is not None:
            end_all(self._superlink, self._folder / "home")
            self._superlink = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(0.5)
        return connection.connect_ex(("127.0.0.1", port)) == 0
