"""The records of rounds, and the history of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from fedplt.client import MetricInfo, accuracy
from fedplt.errors import RunError, did_you_mean
from fedplt.federation.run_folder.sealed import checked
from fedplt.imports import optional_module
from fedplt.text import brief, bytes_text, counted, html_text, table

STRICT = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=0, le=10**30)]
RoundNumber = Annotated[int, Field(ge=1, le=10**9)]
ClientNumber = Annotated[int, Field(ge=0, lt=10**7)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Sampling(BaseModel, extra="allow", strict=True):
    """The sampler's entry in a record; extra values are numbers, such as the budget."""

    __pydantic_extra__: dict[str, Amount]
    num_chosen: Count
    chosen: list[ClientNumber] = []
    probabilities: list[Amount] | dict[str, Amount] = []
    note: str = ""


class _Movement(BaseModel, extra="allow", strict=True):
    """What ``Diagnostics.observe`` writes; extra values are numbers for the whole model."""

    __pydantic_extra__: dict[str, Amount | None]
    layers: dict[str, dict[str, Amount | None]]


def _checked_by(kind: type[BaseModel]) -> AfterValidator:
    """Validate values as this model, but return them unchanged."""
    return AfterValidator(lambda values: (kind.model_validate(values), values)[1])


Sampling = Annotated[dict[str, Any], _checked_by(_Sampling)]
Movement = Annotated[dict[str, Any], _checked_by(_Movement)]
FORMAT: Literal[2] = 2


@dataclass(frozen=True)
class Totals:
    """Costs that add up over rounds."""

    __pydantic_config__: ClassVar = STRICT

    bytes_up: Count = 0
    bytes_down: Count = 0
    flops: Count = 0
    """FLOPs of the clients' training: the matrix products and convolutions that are executed."""
    paper_flops: Amount = 0.0
    """FLOPs by the paper's model, whose backward pass scales with the ratio."""
    simulated_seconds: Amount = 0.0
    """Simulated time: the slowest client's device time, per round; 0 without ``[fleet]``."""

    def plus(self, other: Totals) -> Totals:
        return Totals(**{name: mine + getattr(other, name) for name, mine in vars(self).items()})


def _all_there(values: Any) -> Any:
    """Refuse missing costs: runs write all of them, and a default of 0 would hide the loss."""
    if not isinstance(values, dict):
        return values  # pydantic refuses it
    missing = [field.name for field in fields(Totals) if field.name not in values]
    if missing:
        raise ValueError(f"{', '.join(missing)} must be there")
    return values


WrittenTotals = Annotated[Totals, BeforeValidator(_all_there)]


@dataclass(frozen=True)
class RoundRecord:
    """One round. ``score`` is the value of the run's metric (:attr:`History.metric`)."""

    __pydantic_config__: ClassVar = STRICT

    round: RoundNumber
    """The number of the round, from 1."""
    num_clients: Count
    train_loss: float
    cost: WrittenTotals
    total: WrittenTotals
    seconds: Amount
    score: Finite | None = None
    """None: the round was not evaluated."""
    loss: Finite | None = None
    average_score: Finite | None = None
    """The score of the average of past models (``server.average``)."""
    average_loss: Finite | None = None
    client_scores: dict[str, float] | None = None
    """Mean (weighted by examples), sample std and quantiles over clients; then scores by client."""
    dropped: list[ClientNumber] = field(default_factory=list)
    """Clients that were away: at random (``fleet.dropout``, ``availability``), or disconnected."""
    late: list[ClientNumber] = field(default_factory=list)
    """Clients left out because they would take too long (``fleet.late_after_seconds``)."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Clients whose update was refused, and why."""
    not_evaluated: dict[str, str] = field(default_factory=dict)
    """If clients evaluate: those whose evaluation was refused or missing, and why."""
    devices: dict[str, str] = field(default_factory=dict)
    """With ``[fleet]``: the devices of the clients that dropped out, were late or refused."""
    sampling: Sampling | None = None
    """How the clients were chosen (``docs/sampling.md``); None if all take part."""
    diagnostics: Movement | None = None
    """How the global model moved (``docs/diagnostics.md``), with ``[diagnostics]`` enabled."""
    clipped: dict[str, float] = field(default_factory=dict)
    """With ``clipped-mean``: clients whose update was scaled down, and the smallest factor."""
    privacy: dict[str, Any] | None = None
    """With ``[privacy]``, in evaluated rounds: epsilon and delta so far (``docs/privacy.md``)."""
    replanned: dict[str, Any] | None = None
    """Each client's ratio from this round on, if the fleet was replanned."""
    format: Literal[2] = FORMAT

    __repr__ = brief

    @property
    def away(self) -> list[int]:
        """Clients that dropped out, were late, or whose update was refused."""
        return [*self.dropped, *self.late, *map(int, self.rejected)]

    def to_json(self) -> dict[str, Any]:
        """Plain values; empty, NaN and infinite ones are left out (JSON has no NaN)."""
        values = asdict(self)
        return {key: value for key, value in values.items() if not is_nothing(value)}

    def finite(self) -> RoundRecord:
        """Without scores and losses that are NaN or infinite, as it is read from a file."""
        names = ("score", "loss", "average_score", "average_loss")
        nothing: dict[str, Any] = {name: None for name in names if is_nothing(getattr(self, name))}
        return replace(self, **nothing)

    @classmethod
    def from_json(cls, data: dict[str, Any], what: str = "the record") -> RoundRecord:
        """Read what :meth:`to_json` writes; raise DamagedError if a field has another type.

        ``what``: the name of the record in error messages.
        """
        return checked(_RECORD, {"train_loss": math.nan, **data}, what)


_RECORD = TypeAdapter(RoundRecord)


def is_nothing(value: Any) -> bool:
    return value in (None, {}, []) or (isinstance(value, float) and not math.isfinite(value))


def one_metric(histories: Iterable[History]) -> MetricInfo:
    """The metric of all these histories; scores of different metrics cannot be compared."""
    found = {history.metric.name: history.metric for history in histories}
    if len(found) > 1:
        raise RunError(
            f"these runs have different metrics ({', '.join(sorted(found))}): their scores cannot "
            "be compared."
        )
    return next(iter(found.values()), accuracy.info)


@dataclass(frozen=True)
class History:
    """All rounds of a run."""

    rounds: Sequence[RoundRecord]
    test_score: float | None = None
    test_loss: float | None = None
    metric: MetricInfo = accuracy.info
    """The metric of the scores: name, unit, direction, format."""
    ship: bool | Literal["better"] = False
    """Whether the run ends with the average of its models: ``server.average.ship``."""

    def __repr__(self) -> str:
        done = counted(len(self.rounds), "round")
        if not self.scores:
            return f"<History: {done}, none evaluated>"
        metric, scores = self.metric, self.shipped.scores
        mean = f"mean of the last {len(scores[-10:])}: {metric.text(self.shipped.final_score())}"
        of = f" of the {self.final_model}" if self.final_model else ""
        return f"<History: {done}, last {metric.name}{of} {metric.text(scores[-1])} ({mean})>"

    def _repr_html_(self) -> str:
        """The ``repr``, and a table of at most ten rounds at equal distances."""
        step = max(1, -(-len(self.rounds) // 10))
        shown = [*reversed(self.shipped.rounds[::-1][::step])]
        header = ["round", self.metric.label, "loss", "training loss", "bytes up", "bytes down"]
        rows = []
        for record in shown:
            score = "" if record.score is None else self.metric.number(record.score)
            loss = "" if record.loss is None else f"{record.loss:.4g}"
            sent = map(bytes_text, (record.total.bytes_up, record.total.bytes_down))
            rows.append([str(record.round), score, loss, f"{record.train_loss:.4g}", *sent])
        return html_text(f"{self!r}\n\n{table(header, rows)}")

    def rows(self) -> list[dict[str, Any]]:
        """One row per round, as plain values: score, losses, costs of the round and in all."""
        measured = accumulate(record.seconds for record in self.rounds)
        averages = ("average_score", "average_loss") if self.final_model else ()
        return [
            {
                "round": record.round,
                "metric": self.metric.name,
                "score": record.score,
                "loss": record.loss,
                **{name: getattr(record, name) for name in averages},
                "train_loss": record.train_loss,
                "num_clients": record.num_clients,
                **{f"round_{name}": value for name, value in vars(record.cost).items()},
                **{f"total_{name}": value for name, value in vars(record.total).items()},
                "round_seconds": record.seconds,
                "total_seconds": seconds,
                "num_refused": len(record.rejected),
                "num_dropped": len(record.dropped),
                "num_late": len(record.late),
            }
            for record, seconds in zip(self.rounds, measured, strict=True)
        ]

    def to_frame(self) -> Any:
        """The rounds as a pandas DataFrame, with the columns of ``fedplt export``."""
        pandas = optional_module("pandas", "History.to_frame", "pandas")
        return pandas.DataFrame(self.rows()).set_index("round")

    def plot(self, y: str = "score", x: str = "round", ax: Any = None) -> Any:
        """Draw one column of :meth:`rows` against another; return the matplotlib axes.

        ``history.plot("loss", "total_bytes_up")``. ``ax``: draw into these axes.
        """
        first = (self.rows() or [{}])[0]
        known = [key for key, value in first.items() if not isinstance(value, str)]
        rows = [row for row in self.rows() if row.get(y) is not None]
        for key in (x, y):
            if key not in known:
                raise RunError(f"plot: there is no column {key!r}. {did_you_mean(key, known)}")
        if not rows:
            raise RunError(f"plot: no round has a {y}.")
        if ax is None:
            pyplot = optional_module("matplotlib.pyplot", "History.plot", "'fedplt[pictures]'")
            ax = pyplot.subplots()[1]
        scale = self.metric.scale if y in ("score", "average_score") else 1
        ax.plot([row[x] for row in rows], [scale * row[y] for row in rows], marker=".")
        ax.set_xlabel(x.replace("_", " "))
        ax.set_ylabel(y.replace("_", " ").replace("score", self.metric.label))
        ax.grid(alpha=0.3)
        return ax

    @property
    def scores(self) -> list[float]:
        """The score of each evaluated round."""
        return [r.score for r in self.rounds if r.score is not None]

    @property
    def privacy(self) -> dict[str, Any] | None:
        """The last known epsilon and delta, with ``[privacy]``."""
        return next((r.privacy for r in reversed(self.rounds) if r.privacy), None)

    @property
    def evaluated(self) -> list[RoundRecord]:
        return [r for r in self.rounds if r.score is not None]

    @property
    def best(self) -> RoundRecord | None:
        """The evaluated round with the best score; the first one of a tie."""
        scores = self.scores
        return self.evaluated[scores.index(self.metric.best(scores))] if scores else None

    @property
    def rounds_since_best(self) -> int:
        """Rounds from the best evaluated one to the last evaluated one."""
        return self.evaluated[-1].round - self.best.round if self.best else 0

    @property
    def last_score(self) -> float:
        """The score of the last evaluated round; NaN if there is none."""
        return self.scores[-1] if self.scores else math.nan

    def final_score(self, last: int = 10) -> float:
        """Mean score of the last evaluated rounds; :attr:`last_score` is that of the last one."""
        scores = self.scores[-last:]
        return sum(scores) / len(scores) if scores else math.nan

    def final_numbers(self) -> dict[str, Any]:
        """Scores of the last model and of the average, and that of the final model on test data."""
        numbers: dict[str, Any] = {"test_score": self.test_score}
        if self.final_model:
            numbers["final_model"] = self.final_model
            numbers["average_score_last"] = self.of_average.last_score
            numbers["average_score_last_10"] = self.of_average.final_score()
        return {"score_last": self.last_score, "score_last_10": self.final_score(), **numbers}

    @property
    def of_average(self) -> History:
        """This history with the scores and losses of the average of models as its own."""
        rounds = [replace(r, score=r.average_score, loss=r.average_loss) for r in self.rounds]
        return replace(self, rounds=rounds, ship=True)

    @property
    def shipped(self) -> History:
        """This history with the scores of the model that the run ends with."""
        return self.of_average if self.final_model == "average of models" else self

    @property
    def final_model(self) -> str:
        """Which model the run ends with, in words; empty if no average of models was evaluated."""
        if all(record.average_score is None for record in self.rounds):
            return ""
        return "average of models" if self.ends_with_average else "last model"

    @property
    def ends_with_average(self) -> bool:
        """Whether the final model is the average; before the end: whether it would be, now."""
        if self.ship != "better":
            return self.ship
        return self.metric.better(self.of_average.final_score(), self.final_score())
