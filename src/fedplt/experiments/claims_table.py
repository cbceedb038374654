"""The claims with their verdicts, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from fedplt.experiments.claim_cases import Case
from fedplt.experiments.claims import CLAIMS, Claim
from fedplt.experiments.tables import NONE, Results, Table
from fedplt.experiments.verdicts import Evidence, Judged, Verdict, judge

Line = tuple[Case, Evidence | None, Judged]


def claims_tables(results: Results, claims: Sequence[Claim] = CLAIMS) -> list[Table]:
    """All claims at a glance, then each with its cases."""
    judged = [(claim, [_line(case, results) for case in claim.cases]) for claim in claims]
    overview = Table(
        "claims",
        "The claims at a glance: number of cases by verdict",
        ("claim", *(str(verdict) for verdict in Verdict)),
        tuple(
            (f"{claim.number}. {claim.text}", *(_count(lines, verdict) for verdict in Verdict))
            for claim, lines in judged
        ),
    )
    return [overview, *(_table(claim, lines) for claim, lines in judged)]


def _line(case: Case, results: Results) -> Line:
    evidence = case.measurement.evidence(results)
    return case, evidence, judge(evidence, case.paper_rounds)


def _count(lines: Sequence[Line], verdict: Verdict) -> str:
    number = sum(judged.verdict == verdict for _, _, judged in lines)
    return str(number) if number else ""


def _table(claim: Claim, lines: Sequence[Line]) -> Table:
    return Table(
        f"claim-{claim.number}",
        f"{claim.number}. {claim.text}",
        ("case", "paper", "ours", "95 % interval", "rounds", "seeds", "verdict"),
        tuple(_row(*line) for line in lines),
        tuple(dict.fromkeys(e.note for _, e, _ in lines if e is not None and e.note)),
    )


def _row(case: Case, evidence: Evidence | None, judged: Judged) -> tuple[str, ...]:
    if evidence is None:
        return (case.where, case.paper, *[NONE] * 4, judged.text)
    basis = (f"{evidence.rounds:,}", str(evidence.seeds))
    return (case.where, case.paper, evidence.ours, evidence.interval, *basis, judged.text)
