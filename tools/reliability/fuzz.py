"""Attack: odd inputs for everything that reads one; each is accepted or refused with an error.

``python -m tools.reliability.fuzz 100000 1`` gives so many inputs to all targets together.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from tools.reliability.fuzz_targets import TARGETS, Target, scratch

from fedplt.errors import FedpltError

HANG_SECONDS = 10


class _Hang(BaseException):
    pass


def _ring(number: int, frame: Any) -> None:
    raise _Hang


def run(count: int, seed_: int, findings: dict[str, str] | None = None) -> dict[str, int]:
    """Try ``count`` inputs; one traceback of each kind goes into ``findings``."""
    findings = {} if findings is None else findings
    found: Counter[str] = Counter()
    old = signal.signal(signal.SIGALRM, _ring)
    each = -(-count // len(TARGETS))
    try:
        for index, (name, target) in enumerate(TARGETS.items()):
            number = min(each, count - index * each)
            if number > 0:
                _try_many(name, target, number, seed_ + index, found, findings)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        shutil.rmtree(scratch(), ignore_errors=True)
        scratch.cache_clear()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    keys = ("inputs", "accepted", "refused with an error", "tracebacks", "hangs")
    return {**{key: found[key] for key in keys}, "peak memory, MB": peak}


def _try_many(
    name: str,
    target: Target,
    number: int,
    seed_: int,
    found: Counter[str],
    findings: dict[str, str],
) -> None:
    tried = 0

    def one(value: Any) -> None:
        nonlocal tried
        tried += 1
        outcome = _try(name, target, value, findings)
        found.update(["inputs", outcome])

    many = settings(
        max_examples=number, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    turn = 0
    while tried < number:  # a strategy may run out of new inputs before that
        before, turn = tried, turn + 1
        part = settings(many, max_examples=number - tried)
        seed(1000 * seed_ + turn)(part(given(target.inputs)(one)))()
        if tried == before:
            break


def _try(name: str, target: Target, value: Any, findings: dict[str, str]) -> str:
    signal.alarm(HANG_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.call(value)
        return "accepted"
    except FedpltError:
        return "refused with an error"
    except _Hang:
        findings.setdefault(f"{name}: hang", repr(value)[:500])
        return "hangs"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{name}: {type(error).__name__} in {Path(place.filename).name}:{place.lineno}"
        findings.setdefault(kind, f"{traceback.format_exc()}\n{value!r:.500}")
        return "tracebacks"
    finally:
        signal.alarm(0)


def main() -> int:
    findings: dict[str, str] = {}
    started = time.monotonic()
    figures = run(int(sys.argv[1]), int(sys.argv[2]), findings)
    print(json.dumps(figures, indent=1), f"\n{time.monotonic() - started:.0f} s")
    for kind, text in findings.items():
        print(f"\n== {kind}\n{text}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
