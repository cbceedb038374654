"""The strategy FedPLT for users' Flower apps, in place of FedAvg."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from fedplt.client import METRICS, Metric, MetricInfo
from fedplt.configuration import FROM_PYTHON, RunConfig, parse_config
from fedplt.errors import ConfigError, RunError, did_you_mean
from fedplt.federation import (
    DataOnNodes,
    History,
    Job,
    RoundRecord,
    RunFolder,
    local_training_of,
    plan_from_config,
    run_job,
)
from fedplt.federation.preflight import as_list, checked_ratio, described, method_section, values_of
from fedplt.kernels import read_state
from fedplt.methods import Method
from fedplt_flower.server.app_engine import AppEngine, AppJob, AppSettings, weighted_mean
from fedplt_flower.server.server_app import log_rounds
from fedplt_flower.server.wire import GridWire

_log = logging.getLogger("flwr")
Values = Mapping[str, Any]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class FedPLT(Strategy):
    """A strategy of Flower in which every client trains a slice of the model.

    Use it instead of ``FedAvg(...)``; the clients' app is :class:`SlicesApp` with
    :func:`train_slices`. :meth:`start` runs fedplt's round loop, so all methods and samplers work,
    including samplers that need two phases (train, then upload).

    Args:
        model: the server's model; its values are replaced by ``initial_arrays``.
        example: a batch of inputs, such as ``torch.zeros(2, 3, 32, 32)``; the model is traced
            with it.
        ratios: the fraction of the model that each client trains: one per client, a mapping
            from client to ratio, or one number for all (then give ``num_clients``). A client
            is the ``partition-id`` of its node.
        method: a name, a class, or a dictionary with options: ``{"name": "heterofl",
            "scaler": "normed"}``.
        sampling, server, privacy, cut: sections of a run configuration, as dictionaries (``cut``:
            keys of ``[model]`` such as ``never``).
        metric: the app's metric that is the score in records and reports, by its last word:
            ``"accuracy"`` (also ``eval_acc``), ``"rmse"``, ``"f1"`` ..., or a
            :class:`fedplt.MetricInfo` for a metric with another name.
        seed: seed of the plan and of the sampling of clients.
        out: a run folder (records, checkpoints, final model), in which a stopped run is continued;
            None: nothing on disk.
        min_clients: the run starts when this many clients have joined, and a round with fewer
            updates is repeated; default: all must join, and a round needs only one update.
        num_examples: one per client, if the server knows them; default: each client reports its
            number in the first reply. It must not change, and is capped at ten times the median.
        max_examples: a client that reports more is refused.
        evaluate_on_nodes: call the clients' ``@app.evaluate()`` after a round.
        evaluate_every: rounds between evaluations.
        pin_nodes: with node authentication, a client belongs to its first node.
        name, checkpoint_every: see the run configuration.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        *,
        ratios: Sequence[float] | Mapping[int, float] | float,
        num_clients: int | None = None,
        method: str | type[Method] | Values = "fedplt",
        sampling: Values | None = None,
        server: Values | None = None,
        privacy: Values | None = None,
        metric: str | MetricInfo = "accuracy",
        cut: Values | None = None,
        seed: int = 0,
        out: str | Path | None = None,
        min_clients: int | None = None,
        num_examples: Sequence[int] | None = None,
        max_examples: int = 1_000_000,
        evaluate_on_nodes: bool = True,
        evaluate_every: int = 1,
        pin_nodes: bool = False,
        name: str = "flower-app",
        checkpoint_every: int = 10,
    ) -> None:
        self.model, self.out = model, None if out is None else Path(out)
        self.ratios = _ratio_list(ratios, num_clients)
        self.min_clients, self.max_examples = min_clients, max_examples
        self.evaluate_on_nodes, self.metric = evaluate_on_nodes, _metric_of(metric)
        self._sections: dict[str, Any] = {
            "name": name,
            "seed": seed,
            "checkpoint_every": checkpoint_every,
            "data": {"name": FROM_PYTHON},
            "model": {"name": FROM_PYTHON, **(cut or {})},
            "clients": {"num_clients": len(self.ratios)},
            "method": method_section(method),
            "sampling": values_of("sampling", sampling),
            "server": {**values_of("server", server), "min_clients": min_clients or 0},
            "privacy": None if privacy is None else dict(privacy),
            "evaluation": {"every": evaluate_every, "on": "nodes"},
            "engine": {"name": "flower", "check": False, "pin_nodes": pin_nodes},
        }
        config = parse_config(self._sections)
        self.plan, _ = plan_from_config(config, model, example, self.ratios)
        _refuse_recipe(config)
        if (config.messages.up, config.messages.down) != ("float32", "float32"):
            raise ConfigError(
                "it encodes messages, and a Flower app sends float32. Set the preset's other keys "
                "(docs/configuration.md) one by one.",
                key="method.preset",
            )
        if num_examples is not None and len(num_examples) != len(self.ratios):
            raise ConfigError(
                f"{len(num_examples)} numbers for {len(self.ratios)} clients; give one per client.",
                key="num_examples",
            )
        self._known = np.array(num_examples or [0] * len(self.ratios), dtype=np.int64)
        self.history: History | None = None
        """The records of the rounds, after :meth:`start`."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run all rounds, like the strategies of Flower.

        A client that fails, or has not answered after ``timeout`` seconds, is left out of the
        round.
        """
        began = time.perf_counter()
        self.summary()
        job = self._job(initial_arrays, num_rounds, timeout, evaluate_fn)
        settings = AppSettings(
            initial_arrays, train_config or ConfigRecord(), evaluate_config or ConfigRecord(),
            evaluate_fn, self.evaluate_on_nodes, self.max_examples,
        )  # fmt: skip
        result, engines, log = Result(), list[AppEngine](), log_rounds(num_rounds, job.metric)

        def make_engine(job: Job, stop: Callable[[], bool]) -> AppEngine:
            assert isinstance(job, AppJob)
            engine = AppEngine(job, GridWire(grid), settings, stop)
            engines.append(engine)
            engine.nodes.wait(self.min_clients or len(self.ratios), engine.seconds)
            return engine

        def on_round(record: RoundRecord) -> None:
            _note(result, engines[0], record)
            log(record)

        resume = self.out is not None and RunFolder.has_begun(self.out)
        if evaluate_fn is not None and not resume:
            found = evaluate_fn(0, initial_arrays)
            if found is not None:
                result.evaluate_metrics_serverapp[0] = found
        self.history = run_job(job, self.out, resume=resume, engine=make_engine, on_round=on_round)
        result.arrays = engines[0].arrays(read_state(job.model, job.layers))
        _log.info("fedplt: %s rounds in %.1f s", num_rounds, time.perf_counter() - began)
        return result

    def _job(
        self, arrays: ArrayRecord, num_rounds: int, timeout: float, evaluate_fn: EvaluateFn | None
    ) -> AppJob:
        if evaluate_fn is not None and self.plan.local:
            raise ConfigError(
                "with this method the normalization layers stay on the clients, and "
                "the server's model lacks them. Evaluate on the nodes: leave evaluate_fn out.",
                key="evaluate_fn",
            )
        on = "nodes" if evaluate_fn is None else "both" if self.evaluate_on_nodes else "server"
        sections = self._sections
        config = parse_config(
            {
                **sections,
                "rounds": num_rounds,
                "evaluation": {**sections["evaluation"], "on": on},
                "engine": {**sections["engine"], "round_timeout_seconds": timeout},
            }
        )
        try:
            self.model.load_state_dict(arrays.to_torch_state_dict())
        except RuntimeError as error:
            raise ConfigError(
                f"they are not of the model that FedPLT got: {error}", key="initial_arrays"
            ) from error
        number = len(self.ratios)
        nowhere = DataOnNodes(number)
        return AppJob(
            config=config,
            model=self.model,
            plan=self.plan,
            samples=nowhere,
            offsets=np.arange(number + 1, dtype=np.int64),
            validation=nowhere,
            test=None,
            training=local_training_of(config),
            metric=self.metric,
            known=self._known.copy(),
            are_claims=not self._known.any(),
        )

    def summary(self) -> None:
        """Log what each client trains."""
        for line in self.plan.summary().splitlines():
            _log.info("%s", line)

    def _refuse_wrapping(self, *args: Any, **options: Any) -> NoReturn:
        raise RunError(
            "FedPLT runs its own rounds, which may have two phases; call its start(...) and do not "
            "wrap it into another strategy."
        )

    configure_train = aggregate_train = _refuse_wrapping
    configure_evaluate = aggregate_evaluate = _refuse_wrapping


def _note(result: Result, engine: AppEngine, record: RoundRecord) -> None:
    round = record.round
    sound = {k: each for k, each in engine.train_metrics.items() if str(k) not in record.rejected}
    result.train_metrics_clientapp[round] = MetricRecord(dict(weighted_mean(sound)))
    if round in engine.node_metrics:
        metrics = MetricRecord(dict(engine.node_metrics[round]))
        result.evaluate_metrics_clientapp[round] = metrics
    if round in engine.server_metrics:
        result.evaluate_metrics_serverapp[round] = engine.server_metrics[round]


def _ratio_list(
    ratios: Sequence[float] | Mapping[int, float] | float, num_clients: int | None
) -> list[float]:
    given = as_list(ratios)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        if num_clients is None or num_clients < 1:
            raise ConfigError(f"{given} for how many clients? Give num_clients.", key="ratios")
        given = [given] * num_clients
    if isinstance(given, Mapping):
        if set(given) != set(range(len(given))):
            raise ConfigError(
                f"clients are numbered 0 to {len(given) - 1} (the partition-id of their "
                f"nodes); the mapping has {', '.join(map(repr, given))}.",
                key="ratios",
            )
        given = [given[client] for client in range(len(given))]
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ConfigError(f"ratios is a {described(ratios)}; give one number per client.")
    if num_clients not in (None, len(given)):
        raise ConfigError(
            f"{len(given)} for {num_clients} clients; give one per client.", key="ratios"
        )
    return [float(checked_ratio(client, ratio)) for client, ratio in enumerate(given)]


def _metric_of(given: str | MetricInfo) -> Metric:
    """The metric to look for among the app's metrics."""
    if isinstance(given, Metric):
        return given
    if isinstance(given, MetricInfo):
        return Metric(_computed_by_the_app, **given.to_json())
    if not isinstance(given, str):
        raise ConfigError(f"metric is a {described(given)}; give a name or a fedplt.MetricInfo.")
    if given not in METRICS:
        raise ConfigError(
            f"there is no {given!r}. {did_you_mean(given, METRICS)} For one of your own, "
            "give a fedplt.MetricInfo(name=..., direction='higher' or 'lower').",
            key="metric",
        )
    return METRICS[given]


def _computed_by_the_app(outputs: Any, targets: Any) -> NoReturn:
    raise RunError("the app computes this metric.")


def _refuse_recipe(config: RunConfig) -> None:
    """Refuse recipes that need the clients' data or loss, which only the app has."""
    recipe = local_training_of(config).recipe
    for key, needs in (("masked_loss", "the labels"), ("static_norm", "the training data")):
        if getattr(recipe, key):
            raise ConfigError(
                f"it needs {needs}, which is in the app's own code; leave it out.",
                key=f"method.{key}",
            )
