"""Write docs/reliability.md: what is promised, how it is attacked, what came out.

``make reliability`` runs all attacks (about half an hour); ``--only damage`` runs one, and keeps
the others' figures, which are in results/reliability.json. A new attack is a module
``tools/reliability/NAME.py`` with ``run(count, seed)``, which returns figures by name, and an entry
in ``ATTACKS``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.machine import machine

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "reliability.md"
MEMORY, MEMORY_MB = "peak memory, MB", 2048
RESULTS = PROJECT / "results" / "reliability.json"
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Attack:
    """A row of the page, and the module of ``tools/reliability`` that computes it."""

    title: str
    module: str
    count: int
    promise: str
    how: str
    bad: tuple[str, ...]
    """Figures that must be 0."""
    equal: tuple[str, str] | None = None
    """Two figures that must be equal, such as runs and runs with the same bits."""

    def run(self, count: int, seed: int) -> Figures:
        figures: Figures = importlib.import_module(f"tools.reliability.{self.module}").run(
            count, seed
        )
        return figures

    def failed(self, figures: Figures) -> list[str]:
        wrong = [f"{figures.get(key, 0)} {key}" for key in self.bad if figures.get(key, 0)]
        if self.equal and figures and figures[self.equal[0]] != figures[self.equal[1]]:
            wrong.append(" of ".join(f"{figures[key]} {key}" for key in reversed(self.equal)))
        if (peak := figures.get(MEMORY, 0)) > MEMORY_MB:
            wrong.append(f"{peak} MB of memory")
        return wrong


ATTACKS = (
    Attack(
        "Power loss", "power_loss", 500,
        "After a power loss at any moment, a run that has begun resumes to the same bits.",
        "A run is recorded call by call. At a random moment, what was not synced is dropped, all "
        "of it or a part; names may be there without their data. The run is resumed from what is "
        "left.",
        ("other bits", "not resumed", "rounds reported without a record"),
    ),
    Attack(
        "Damage", "damage", 500,
        "A changed file of a run folder is detected when the run is resumed, and when a finished "
        "run is reported, loaded or evaluated, or the change has no effect. If the newest "
        "checkpoint is damaged, the one before is used. A pipe in place of a file does not block.",
        "One file of a finished or broken run is changed: flipped bits, lost, doubled or zeroed "
        "parts, lost lines, another run's file, an earlier file of the same run, a pipe, noise, "
        "changed numbers, wrong fields with a right seal.",
        ("unnoticed", "tracebacks"),
    ),
    Attack(
        "Kills", "kills", 20,
        "A run that is killed at any moment resumes to the same bits, with all rounds recorded.",
        "The command line runs with two workers; the process, or it and its workers, get SIGKILL "
        "at random moments, up to five times.",
        (), ("runs", "same bits"),
    ),
    Attack(
        "Worker deaths", "worker_deaths", 50,
        "A worker that dies is replaced and its clients are redone, to the same bits.",
        "Workers are killed, crash, exit, close their connection, or leave a child that holds it, "
        "at random points of runs of several methods and samplers.",
        (), ("runs", "same bits"),
    ),
    Attack(
        "Hostile downloads", "hostile_downloads", 200,
        "A data source that sends an endless reply, a decompression bomb, a path outside of its "
        "folder or invalid data is refused with an error, in bounded time and space. Nothing is "
        "written elsewhere.",
        "Replies and archives are made hostile at random.",
        (), ("attacks", "held"),
    ),
    Attack(
        "Odd inputs", "fuzz", 100_000,
        "Any content of a configuration, a record, a plan, a checkpoint, a list of devices, a "
        "split or a client's update is accepted, or refused with an error: without a traceback, "
        "within 10 s and 2 GB of memory.",
        "Hypothesis changes valid inputs: values of other types, infinities, 5,000 digits, 3,000 "
        "brackets, NUL, lost and doubled parts.",
        ("tracebacks", "hangs"),
    ),
    Attack(
        "Hostile updates", "bad_clients", 100_000,
        "Anything that a client sends is accepted as its update of this round, or refused with an "
        "error, and the round continues. No client counts for more examples than the server "
        "knows.",
        "Updates with bytes changed, left out, repeated or replaced by odd texts. Then 30 rounds "
        "with a client that flips the sign of its updates and claims 10^12 examples.",
        ("tracebacks", "over 10 s"), ("updates it sent", "of them refused"),
    ),
    Attack(
        "Odd bytes", "fuzz_decoders", 100_000,
        "The same holds for all decoders of bytes.",
        "atheris, a fuzzer that is guided by coverage, starts from a valid input.",
        ("tracebacks, hangs, or over 2 GB",),
    ),
)  # fmt: skip

NODES = (
    "Headers of more than 2,000,000 characters are refused before they are parsed. Arrays are read "
    "by NumPy's own format alone, never as archives or pickles; type and size are compared with "
    "the bytes that came before memory is taken.",
    "An evaluation is refused if its score, its sums or its labels are outside of the metric's "
    "limits, or its loss is not finite. It counts for at most ten times the median number of "
    "examples. `evaluation.combine` takes a median or a trimmed mean over the clients instead "
    "([bad clients](robust.md)).",
    "An update norm that is negative, or larger than float32 numbers allow, is refused before "
    "clients are chosen by it. After the upload, both reported norms must be those of the update.",
    "A node that gives no answer before the deadline is asked again in the next round, then after "
    "2, 4, ... and at most 32 rounds; sooner if fewer than `min_clients` others are there.",
    "In a deployment, a node is the client that its key belongs to (`server/keys`): it cannot join "
    "as another one, even if it asks first.",
    "Texts of nodes reach logs and records as one line of at most 2,000 printable characters; "
    "exported CSV files hold no formulas.",
)
NOT_PROTECTED = (
    "**A user who may write to the folder.** Seals are plain digests, without a key: they show "
    "damage and mistakes, not a forger who computes a new seal.",
    "**Both checkpoints at once.** A run goes on if one of its two checkpoints is whole. Keep a "
    "copy elsewhere of what must survive the disk.",
    "**A disk that lies.** A disk or network file system that reports data as synced too early can "
    "lose a checkpoint. The one before it is older, and probably intact.",
    "**Data from Python or from your own functions.** Built-in data sets are checked to the bit "
    "before every run, and tensors by a checksum on resume; of a Dataset only the size is checked.",
    "**Code that a configuration names.** Running a configuration with an import path runs that "
    "code. Read other people's configurations first. Reports, curves and comparisons of "
    "finished runs import nothing that their files name.",
    "**Plausible lies of a node.** A wrong score within the metric's limits, a device that is "
    "slower or faster than reported, a norm that makes a sampler choose a client whose update is "
    "then refused: robust rules bound their effect ([bad clients](robust.md)).",
    "**Records since the last checkpoint.** They are synced with the checkpoint. After a power "
    "loss those rounds are computed again, to the same bits.",
    "**A whole folder of an earlier moment.** If every file is restored together, the folder is "
    "that of a run that was stopped earlier. `sessions.json` alone, which only describes machines, "
    "is not compared with the others.",
)


def page(results: Mapping[str, Figures], measured: Mapping[str, str] | None = None) -> str:
    failures = [
        f"{attack.title}: {text}"
        for attack in ATTACKS
        for text in attack.failed(results.get(attack.module, {}))
    ]
    verdict = "**All promises held.**"
    if failures:
        verdict = "**Broken promises:** " + "; ".join(failures) + "."
    lines = [
        "# Reliability",
        "",
        "To know what a run survives (a power loss, a flipped bit, a killed process, a hostile "
        "client), read the promises below, how each is tested, and the results. To repeat the "
        "tests and write this page (half an hour; `make fuzz` tries odd inputs only):",
        "",
        "```sh",
        "make reliability",
        "```",
        "",
        verdict,
        "",
        *[
            line
            for attack in ATTACKS
            for line in _section(
                attack, results.get(attack.module, {}), (measured or {}).get(attack.module, "")
            )
        ],
        "## Answers of nodes",
        "",
        "Nodes may send anything. One reader checks every kind of answer: to join, to train, to "
        "upload, to evaluate. If it cannot read an answer, it refuses that client; the round "
        "continues, and its record names the client (`rejected`, `not_evaluated`). "
        "`tests/flower/test_hostile_answers.py` changes every part of every kind of answer.",
        "",
        *(f"- {text}" for text in NODES),
        "",
        "## How a run folder is written",
        "",
        "- Each file is written under another name, synced, renamed, and its folder synced.",
        "- A round is evaluated after its checkpoint, which holds its record without the scores. A "
        "run that is killed in between is evaluated on `fedplt resume`. Records of earlier rounds "
        "are synced before the checkpoint that counts them.",
        "- The last two checkpoints are kept: `checkpoint.safetensors` and "
        "`checkpoint.previous.safetensors`.",
        "- Each file, and each line of `rounds.jsonl`, carries the run's id and a SHA-256 digest "
        "of its content (`seal`). Every field is checked when it is read.",
        "- `config.toml` is only for reading. To change a run, use `fedplt resume FOLDER --set "
        "rounds=300`; an edited file is refused. If it is damaged, delete it: `fedplt resume` "
        "writes it again from the checkpoint.",
        "- A line of `rounds.jsonl` that is lost or damaged does not stop a run: `fedplt resume` "
        "names the rounds without a record, and so do reports, `load` and `evaluate`, which know "
        "from the checkpoint and the result how many there must be.",
        "- `model.safetensors` must be the one that `result.json` is about (`weights_sha256`), and "
        "both must be of the last round: an earlier file of the same run is refused.",
        "- Only regular files are opened. A pipe or a device in the folder is refused by name.",
        "- With `[privacy]` the files that hold the key of the noise are readable by their owner "
        "alone ([privacy](privacy.md)).",
        "- A damaged `plan.json`, `metric.json` or `devices.json` is written again by `fedplt "
        "resume`; `sessions.json` starts again. A report warns about a damaged plan, devices or "
        "sessions, and leaves them out; it refuses damaged records, results and models.",
        "- `last.safetensors` and `average.safetensors` (with `server.average`) must be of the "
        "last round, too; `fedplt resume` writes them again.",
        "- `best.safetensors` cannot be computed again: `fedplt report` and `fedplt resume` report "
        "the damage, and the next better round replaces it.",
        "",
        "## What is not protected",
        "",
        *(f"- {text}" for text in NOT_PROTECTED),
    ]
    return "\n".join(lines) + "\n"


def _section(attack: Attack, figures: Figures, measured: str) -> list[str]:
    return [
        f"## {attack.title}",
        "",
        f"{attack.promise}",
        "",
        f"Attack (`tools/reliability/{attack.module}.py`): {attack.how}",
        "",
        "| " + " | ".join(figures or ["not run"]) + " |",
        "|" + "--:|" * max(1, len(figures)),
        "| " + " | ".join(f"{value:,}" for value in figures.values()) + " |",
        "",
        *([f"Measured {measured}.", ""] if measured else []),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="each does its part")
    parser.add_argument("--only", nargs="*", help="modules of tools/reliability (default: all)")
    parser.add_argument("--count", type=int, help="how many attacks (default: as in ATTACKS)")
    arguments = parser.parse_args()
    broken, seeds = False, arguments.seeds
    for attack in ATTACKS:
        if arguments.only is not None and attack.module not in arguments.only:
            continue
        print(f"{attack.title} ...", flush=True)
        figures: Figures = {}
        started, each = time.monotonic(), -(-(arguments.count or attack.count) // len(seeds))
        for number, seed in enumerate(seeds, start=1):
            figures = _together(figures, attack.run(each, seed))
            minutes = (time.monotonic() - started) / 60
            print(f"  {figures}", flush=True)
            which = ", ".join(map(str, seeds[:number]))
            measured = f"on {machine()}, seed {which}, in {minutes:.1f} minutes"
            _note(attack.module, {"figures": figures, "measured": measured})
        broken |= bool(attack.failed(figures))
    write_page()
    return int(broken)


def _together(figures: Figures, more: Figures) -> Figures:
    """Counts add up; of memory and accuracies, the worst."""

    def joined(key: str, old: float, new: float) -> float:
        if key == MEMORY:
            return max(old, new)
        return min(old, new) if isinstance(new, float) else old + new

    return {key: joined(key, figures[key], new) if figures else new for key, new in more.items()}


def write_page() -> None:
    found = _recorded()
    figures = {name: entry["figures"] for name, entry in found.items()}
    measured = {name: entry["measured"] for name, entry in found.items()}
    PAGE.write_text(page(figures, measured), encoding="utf-8")


def _recorded() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    return recorded


def _note(module: str, entry: dict[str, Any]) -> None:
    text = json.dumps({**_recorded(), module: entry}, indent=1)
    RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
