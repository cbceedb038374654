"""What the score of a run is called, how it is shown, and which scores are better."""

from __future__ import annotations

from dataclasses import dataclass

from fedplt.federation import History, RoundRecord


@dataclass(frozen=True)
class Metric:
    """A metric as the page shows it."""

    name: str
    unit: str = ""
    """``"%"``: scores are fractions, shown times 100."""
    higher_is_better: bool = True
    digits: int = 2

    @property
    def scale(self) -> float:
        return 100.0 if self.unit == "%" else 1.0

    @property
    def label(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def number(self, score: float) -> str:
        return f"{self.scale * score:.{self.digits}f}"

    def text(self, score: float) -> str:
        return f"{self.number(score)} {self.unit}".strip()

    def reaches(self, score: float, target: float) -> bool:
        return score >= target if self.higher_is_better else score <= target


def metric_of(history: History) -> Metric:
    """The metric of a run."""
    return Metric("accuracy", "%")


def score_of(record: RoundRecord) -> float | None:
    return record.accuracy


def final_score(history: History) -> float:
    """Mean score of the last 10 evaluated rounds."""
    return history.final_accuracy()


def test_score(history: History) -> float | None:
    return history.test_accuracy


def client_summary(record: RoundRecord) -> dict[str, float]:
    """Mean, std and quantiles over clients; empty if they were not evaluated."""
    found = record.client_accuracy or {}
    return {key: value for key, value in found.items() if not key.isdecimal()}


def client_scores(record: RoundRecord) -> dict[int, float]:
    """Scores by client; of a large fleet only the lowest and the highest."""
    found = record.client_accuracy or {}
    return {int(key): value for key, value in found.items() if key.isdecimal()}
