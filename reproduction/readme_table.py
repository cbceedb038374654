"""The table of README.md: what FedPLT is for, next to its alternatives (``make results``).

Three rows are recorded runs of experiment 2 (results/exp2/fashion-fcn). The fourth, full training
on the fast devices alone, is run and recorded in results/why by
``python -m reproduction.readme_table --run`` (three runs of about ten minutes on one core),
together with the round times of all four.

The time is predicted, not measured: a client's round is latency, download, exact FLOPs and upload
on a device of the built-in fleet ``kitchen``, one device per group of clients, and a round lasts as
long as its slowest client.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from fedplt.federation import job_from_config
from fedplt.federation.availability import Availability
from fedplt.federation.round_costs import RoundCosts
from fedplt.files import write_text
from reproduction.catalog import EXPERIMENTS
from reproduction.pages import replace_generated
from reproduction.recorded import Recorded, RecordedRun
from reproduction.runner import Place, reproduce
from reproduction.settings import Block, Contestant

ROOT = Path(__file__).parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "results"
RUNS, TIMES = RESULTS / "why" / "runs.json", RESULTS / "why" / "times.json"
SEEDS, ROUNDS, LAST, TARGETS = (3, 4, 5), 300, 10, (0.75, 0.8)
EXP2 = EXPERIMENTS["exp2"].blocks["fashion-fcn"]
DEVICES = {"devices": "kitchen", "ratios": "groups"}
FULL = {"groups": [{"share": share, "ratio": 1.0} for share in (0.1, 0.3, 0.6)]}
FAST_ONLY = Contestant(
    "fedavg-fast-only",
    "FedAvg, slow devices left out",
    {
        "clients": FULL,
        "method": {"name": "fedavg"},
        # A phone needs 1.4 to 1.8 s for the whole model, all others 4.8 s or more.
        "fleet": {**DEVICES, "late_after_seconds": 4.0},
    },
)
BLOCK = Block("why", "fashion-fcn", EXP2.setting, (FAST_ONLY,))
ROWS = {
    "fedavg": ("FedAvg", "all 50 train everything"),
    "fedavg-fast-only": ("FedAvg, slow devices left out", "the 5 phones train everything"),
    "heterofl": ("HeteroFL", "a smaller model for weak devices"),
    "fedplt": ("**FedPLT**", "a slice of every layer, by device"),
}


def run() -> None:
    """Train what is missing, one run at a time, and record it and the round times of all rows."""
    place = Place(ROOT / "runs" / "why", ROOT / "runs" / "why" / "results")
    for problem in reproduce(BLOCK, place, SEEDS, ROUNDS, processes=1).values():
        raise SystemExit(problem)
    place.recorded(BLOCK).save(RUNS)
    record_times()


def record_times() -> None:
    seconds = {name: {seed: round_seconds(name, seed) for seed in SEEDS} for name in ROWS}
    write_text(TIMES, json.dumps({"round_seconds": seconds}, indent=1) + "\n")


def round_seconds(name: str, seed: int) -> float:
    """The time of the slowest client that takes part; the same in all rounds."""
    contestant = next(c for c in (*EXP2.contestants, FAST_ONLY) if c.name == name)
    sections = {"fleet": DEVICES, **contestant.sections}
    if name == "fedavg":
        sections["clients"] = FULL  # one group per device
    job = job_from_config(BLOCK.config(Contestant(name, "", sections), ROUNDS, seed))
    times = Availability(job, RoundCosts(job))
    return round(float(times.predicted(0)[times.attend(0).present].max()), 3)


def _recorded() -> dict[str, Mapping[int, RecordedRun]]:
    """All runs of experiment 2 and of the devices that are fast, by contestant and seed."""
    exp2 = Recorded.load(RESULTS / "exp2" / "fashion-fcn" / "runs.json")
    return {**exp2.runs, **Recorded.load(RUNS).runs}


def table() -> str:
    """The table of the recorded runs, in Markdown."""
    runs = _recorded()
    seconds = json.loads(TIMES.read_text(encoding="utf-8"))["round_seconds"]
    header = [
        "", "who trains what", f"accuracy after {ROUNDS} rounds", "sent up", "sent down",
        "simulated time", *(f"to {100 * target:.0f} %" for target in TARGETS),
    ]  # fmt: skip
    rows = [header, ["---", "---", *["---:"] * (len(header) - 2)]]
    for name, (title, who) in ROWS.items():
        seeds = [seed for seed in SEEDS if seed in runs[name]]
        some = "" if len(seeds) == len(SEEDS) else f" (seeds {', '.join(map(str, seeds))})"
        found = [(runs[name][seed], seconds[name][str(seed)]) for seed in seeds]
        rows.append([title + some, who, *_numbers(found)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def note() -> str:
    """The sentence below the table: what more seeds give, for the rows that have them."""
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for name, (title, _) in ROWS.items():
        runs = {seed: run for seed, run in _recorded()[name].items() if run.rounds >= ROUNDS}
        if set(runs) > set(SEEDS):
            scores = [100 * fmean(run.accuracy[-LAST:]) for run in runs.values()]
            text = f"{title.strip('*')} {_spread(scores)}"
            by_seeds.setdefault(tuple(sorted(runs)), []).append(text)
    return " ".join(
        f"Over {len(seeds)} seeds (also {_listed([s for s in seeds if s not in SEEDS])}, which the "
        f"other rows do not have): {_listed(texts)}."
        for seeds, texts in by_seeds.items()
    )


def _listed(values: Sequence[object]) -> str:
    """
    >>> _listed([3, 4, 5])
    '3, 4 and 5'
    """
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def _spread(scores: Sequence[float]) -> str:
    return f"{fmean(scores):.1f} ± {stdev(scores):.1f} %"


def generated() -> str:
    """What stands between the marker lines of README.md."""
    below = note()
    return f"{table()}\n\n{below}" if below else table()


def _numbers(runs: Sequence[tuple[RecordedRun, float]]) -> list[str]:
    """Of the runs of one row, each with the seconds of its rounds."""
    scores = [100 * fmean(run.accuracy[-LAST:]) for run, _ in runs]
    sent = [
        fmean(float(run.costs[kind].sum()) for run, _ in runs)
        for kind in ("bytes_up", "bytes_down")
    ]
    return [
        _spread(scores),
        *(f"{number / 1e9:.1f} GB" for number in sent),
        _hours_text([run.rounds * each for run, each in runs]),
        *(_hours_text([_rounds_to(to, run) * each for run, each in runs]) for to in TARGETS),
    ]


def _rounds_to(target: float, run: RecordedRun) -> int:
    """The first evaluated round with at least this accuracy; 0: none."""
    return next((r for r, a in zip(run.evaluated, run.accuracy, strict=True) if a >= target), 0)


def _hours_text(seconds: Sequence[float]) -> str:
    """The mean over the runs that get there; 0 stands for never."""
    reached = [each / 3600 for each in seconds if each]
    if not reached:
        return "never"
    missing = len(seconds) - len(reached)
    return f"{fmean(reached):.2f} h" + (f" ({missing} of {len(seconds)} never)" if missing else "")


if __name__ == "__main__":
    if "--run" in sys.argv:
        run()
    replace_generated(README, generated())
