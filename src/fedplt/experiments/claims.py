"""The paper's claims as data, each with the cases in which it is checked."""

from __future__ import annotations

from dataclasses import dataclass

from fedplt.experiments import claim_cases as cases
from fedplt.experiments.claim_cases import Case
from fedplt.experiments.verdicts import on_par


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
        cases.sampling(
            "aware",
            {"ocs": "5 models against 5 clients", "ocs-equal": "equal expected uploads"},
        ),
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
)

CLAIMS = tuple(
    Claim(number, text, tuple(found)) for number, (text, found) in enumerate(_CLAIMS, start=1)
)
