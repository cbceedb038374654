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
    """Mean, std, min, median, max over clients; empty if they were not evaluated."""
    return record.client_accuracy or {}


def client_scores(record: RoundRecord) -> dict[int, float]:
    """Scores by client; empty if they were not recorded."""
    return {}
