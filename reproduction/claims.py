"""The paper's claims as data, each with the cases in which it is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedplt.text import Table
from reproduction import claim_cases as cases
from reproduction.claim_cases import Case
from reproduction.tables import NONE, Results
from reproduction.verdicts import Evidence, Judged, Verdict, judge, on_par


@dataclass(frozen=True)
class Claim:
    number: int
    text: str
    cases: tuple[Case, ...]


_CLAIMS = (
    (
        "FedPLT at 29 / 23 / 18 % is on par with full training",
        cases.like_fedavg("exp1", "balanced"),
    ),
    (
        "More balanced allocations are better (rank correlation of E and accuracy, by seed)",
        cases.balance(),
    ),
    (
        "FedPLT beats FedPMT, FedRolex, FedDrop and HeteroFL in the unequal fleet",
        cases.rivals(),
    ),
    ("FedPLT has a smaller standard deviation over seeds than FedAvg", cases.spreads()),
    (
        "FedPLT needs less communication and computation than FedAvg to the same accuracy",
        cases.savings(),
    ),
    ("FedPLT is more accurate than FedAvg at equal communication", cases.equal_costs()),
    (
        "FedPLT-aware OCS beats the original OCS at equal budget",
        cases.aware_ocs(),
    ),
    (
        "The sampling rule as printed is on par with the true optimum (our question)",
        (
            *cases.sampling("literal", {"aware": "5 models"}, on_par),
            *cases.sampling("literal-equal", {"aware": "equal expected uploads"}, on_par),
        ),
    ),
    (
        "Section III: deep-heavy beats shallow-dominant on the FCN, the reverse on ResNet-8",
        cases.study(),
    ),
    ("71 to 82 % fewer trained parameters, on par with full training", cases.fewer_parameters()),
    (
        "FedPLT is on par with FedAvg in the unequal fleet, too",
        cases.like_fedavg("exp2", "fedplt"),
    ),
    (
        "FedPLT with FedPLT-aware OCS beats full-model OCS",
        cases.sampling("aware", {"full-ocs": "5 models"}),
    ),
    ("FedPLT beats full training where the paper has it ahead", cases.above_fedavg()),
    ("FedPLT is more accurate than FedAvg at equal computation", cases.equal_computation()),
    (
        "FedPLT and FedAvg have similar curves by round (mean difference over all rounds)",
        cases.similar_curves(),
    ),
    (
        "The spread over seeds grows with imbalance (most balanced, largely unbalanced)",
        cases.spreads_by_balance(),
    ),
    (
        "With the original OCS, FedPLT is behind full-model OCS (low fleet) and ahead (moderate)",
        cases.original_ocs(),
    ),
    (
        "FedPLT-aware OCS has less sampling variance than the original OCS",
        cases.sampling_ratios("variance"),
    ),
    (
        "With FedPLT-aware OCS participation is fairer (Jain's index of the probabilities)",
        cases.sampling_ratios("fairness"),
    ),
    ("FedPLT suffers less from stragglers (simulated time)", cases.stragglers()),
)

CLAIMS = tuple(
    Claim(number, text, tuple(found)) for number, (text, found) in enumerate(_CLAIMS, start=1)
)


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
    others = tuple(dict.fromkeys(n for _, e, _ in lines if e is not None for n in e.others))
    return Table(
        f"claim-{claim.number}",
        f"{claim.number}. {claim.text}",
        ("case", "paper", "ours", "95 % interval", *others, "rounds", "seeds", "verdict"),
        tuple(_row(others, *line) for line in lines),
        tuple(dict.fromkeys(e.note for _, e, _ in lines if e is not None and e.note)),
    )


def _row(
    others: Sequence[str], case: Case, evidence: Evidence | None, judged: Judged
) -> tuple[str, ...]:
    if evidence is None:
        return (case.where, case.paper, *[NONE] * (4 + len(others)), judged.text)
    shown = [evidence.others[n].text if n in evidence.others else NONE for n in others]
    cells = (evidence.ours, evidence.interval, *shown, f"{evidence.rounds:,}", str(evidence.seeds))
    return (case.where, case.paper, *cells, judged.text)
