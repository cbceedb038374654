"""From evidence to a verdict.

*On par*: the paired 95 % interval of the difference lies within +-1 point. *Beats*: it lies above
0. A claim does not hold if the interval lies outside of +-1 point, or below 0. All other cases are
not decided, and neither are cases with fewer than three seeds or half of the paper's rounds; then
the tendency is given. A cost to a target that both runs reached needs no number of rounds. A
verdict or tendency that the last round alone or the test set would change is marked as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fedplt.comparison import Interval

MIN_SEEDS = 3
MARGIN = 1.0
"""Largest difference that counts as on par, in points of accuracy."""


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "not decided"
    MISSING = "not run yet"


@dataclass(frozen=True)
class Other:
    """The evidence by another final score than the claim's, such as the last round's."""

    text: str
    decision: bool | None
    towards: bool | None = None
    """As in :class:`Evidence`."""


@dataclass(frozen=True)
class Evidence:
    """What our runs show about a claim."""

    ours: str
    interval: str
    decision: bool | None
    """The decision by the interval alone; None if it does not decide."""
    towards: bool | None
    """Whether the estimate alone supports the claim; None if there is no estimate."""
    seeds: int
    rounds: int
    instead: str = ""
    """What is true if the claim does not hold, if that is not obvious."""
    note: str = ""
    apart: str = ""
    """``better`` or ``worse`` if the interval excludes 0, for claims of being on par."""
    others: Mapping[str, Other] = field(default_factory=dict)
    """The same comparison by other final scores, by their name."""
    target_reached: bool = False
    """The cost to a target that all runs reached: more rounds would not change it."""


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    why: str = ""

    @property
    def text(self) -> str:
        return f"{self.verdict} ({self.why})" if self.why else str(self.verdict)


Rule = Callable[[Interval], tuple[bool | None, bool]]
"""Decision and tendency for an interval."""


def beats(interval: Interval) -> tuple[bool | None, bool]:
    """
    >>> beats(Interval(1.0, 0.5, 1.5, 3)), beats(Interval(0.5, -0.5, 1.5, 3))
    ((True, True), (None, True))
    """
    towards = interval.estimate > 0
    if interval.low is None or interval.high is None:
        return None, towards
    return (True if interval.low > 0 else False if interval.high < 0 else None), towards


def on_par(interval: Interval) -> tuple[bool | None, bool]:
    """
    >>> on_par(Interval(0.5, 0.2, 0.8, 3)), on_par(Interval(2.0, 1.5, 2.5, 3))
    ((True, True), (False, False))
    """
    towards = abs(interval.estimate) <= MARGIN
    if interval.low is None or interval.high is None:
        return None, towards
    if interval.low >= -MARGIN and interval.high <= MARGIN:
        return True, towards
    outside = interval.low > MARGIN or interval.high < -MARGIN
    return (False if outside else None), towards


def better_or_worse(interval: Interval) -> str:
    """Whether a contestant that is not on par is better or worse."""
    return "better" if interval.estimate > 0 else "worse"


def apart(interval: Interval) -> str:
    """
    >>> apart(Interval(-1.2, -2.2, -0.1, 3)), apart(Interval(0.5, -0.5, 1.5, 3))
    ('worse', '')
    """
    if interval.low is None or interval.high is None or interval.low <= 0 <= interval.high:
        return ""
    return better_or_worse(interval)


_WORDS = {True: Verdict.HOLDS, False: Verdict.FAILS, None: Verdict.OPEN}
_TENDS = {True: "tends to hold", False: "tends not to hold", None: ""}


def judge(evidence: Evidence | None, paper_rounds: int) -> Judged:
    """The verdict; if undecided, with the tendency and the reasons."""
    if evidence is None:
        return Judged(Verdict.MISSING)
    reasons = []
    if evidence.seeds < MIN_SEEDS:
        reasons.append(f"{evidence.seeds} seed{'s' * (evidence.seeds != 1)}")
    if 2 * evidence.rounds < paper_rounds and not evidence.target_reached:
        reasons.append(f"{evidence.rounds} of {paper_rounds:,} rounds")
    if evidence.decision is not None and not reasons:
        depends = [f"by the {name}: {_WORDS[other.decision]}"
                   for name, other in evidence.others.items()
                   if other.decision is not evidence.decision]  # fmt: skip
        verdict = Verdict.HOLDS if evidence.decision else Verdict.FAILS
        instead = [] if evidence.decision or not evidence.instead else [evidence.instead]
        return Judged(verdict, "; ".join([*instead, *depends]))
    tendency = _TENDS[evidence.towards]
    if evidence.apart and evidence.towards:
        tendency = f"within {MARGIN:.0f} point"
    away = f"{evidence.apart}: the interval excludes 0" if evidence.apart else ""
    elsewhere = _elsewhere(evidence, bool(reasons))
    why = "; ".join(text for text in (tendency, away, ", ".join(reasons), *elsewhere) if text)
    return Judged(Verdict.OPEN, why)


def _elsewhere(evidence: Evidence, is_too_little: bool) -> Iterator[str]:
    """Other final scores that would decide an undecided case, or turn its tendency.

    ``is_too_little``: seeds or rounds; then no final score decides.
    """
    for name, other in evidence.others.items():
        if other.decision is not None and not is_too_little:
            yield f"by the {name}: {_WORDS[other.decision]}"
        elif None not in (other.towards, evidence.towards) and other.towards != evidence.towards:
            yield f"by the {name}: {_TENDS[other.towards]}"
