"""``fedplt.advise``: train every sensible strategy for a fleet, and recommend one.

<out>/
    devices.csv         the fleet, copied
    STRATEGY-seedN/     one run's folder, and .toml and .log beside it, as in a comparison
    rungs.json          with a budget of minutes: the simulated seconds of the rungs
    advice.json         the results
    report.html         the page of the answer
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from fedplt.configs import find_fleet
from fedplt.configuration import ConfigLike, as_config, read_fleet, read_text
from fedplt.data import Fetching
from fedplt.errors import ConfigError, FedpltError, FleetError, RunError
from fedplt.federation import find_code, load_data, model_from_config, on_device, take_lock
from fedplt.files import write_text
from fedplt.fleet import available_cores
from fedplt_compare.advice import Advice
from fedplt_compare.compare import Watch, check_runs, make_folder, variant
from fedplt_compare.race import Race, candidates_of
from fedplt_compare.strategies import make_setting, strategies_of, with_exclusions


def advise(
    config: ConfigLike,
    devices: str | Path,
    out: str | Path,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    deadline_seconds: float | None = None,
    hours: float | None = None,
    minutes: float | None = None,
    rates: Sequence[float] = (),
    target: float | None = None,
    processes: int | None = None,
    fetching: Fetching = nullcontext,
    watch: Watch | None = None,
) -> Advice:
    """Train every sensible strategy for a fleet on the same data; compare by simulated time.

    Args:
        config: a configuration, a dictionary of its sections, or the path of a TOML file. Its
            clients become the devices of the fleet; its method is replaced.
        devices: a file of devices, or a built-in fleet.
        out: the folder that gets one folder per run; the same call continues there.
        seeds: one run per strategy and seed; a seed gives all strategies the same splits and
            initial weights.
        deadline_seconds: of a round, for strategies with a deadline (default: the planner's).
        hours: simulated hours after which strategies are compared (default: as long as FedPLT
            takes for the configuration's rounds).
        minutes: limit of this machine's time, kept by successive halving; default: no limit.
        rates: learning rates to try with every strategy, on the first seed and a quarter of the
            hours; default: the configuration's for all.
        target: report the hours to reach this score (default: one that most strategies reach).
        processes: runs at a time (default: one per core).
        fetching: context manager that displays the progress of downloads.
        watch: gets progress callbacks.
    """
    ends = math.inf if minutes is None else time.monotonic() + 60 * minutes
    config, out, seeds = on_device(as_config(config)), Path(out), list(seeds)
    check_runs({"strategies": {}}, seeds, processes, target, config.task.task().metric.info)
    given = {"deadline_seconds": deadline_seconds, "hours": hours, "minutes": minutes}
    given |= {f"rates, number {i + 1}": rate for i, rate in enumerate(rates)}
    for name, value in given.items():
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise ConfigError(f"{name} is {value!r}; give a positive number.")
    rates = list(dict.fromkeys(rates))
    if config.engine.name != "simulator":
        raise ConfigError("advice is simulated: set engine.name = 'simulator'.", key="engine.name")
    read_fleet(Path(devices))  # refuses a wrong file before anything is written
    make_folder(out)
    with closing(take_lock(out)):
        copied = _copied(devices, out)
        find_code(config)
        with fetching() as progress:
            data = load_data(config, progress)
        config = variant(config, config.name, {}, seeds[0])
        setting = make_setting(config, copied, data, model_from_config(config), deadline_seconds)
        strategies, skipped = strategies_of(setting)
        candidates = []
        for strategy in strategies:
            try:
                candidates += candidates_of(setting, with_exclusions(strategy, setting, out), rates)
            except FedpltError as error:
                skipped[strategy.title] = str(error)
        if not candidates:
            reasons = [f"{title}: {why}." for title, why in skipped.items()]
            raise RunError("\n".join(["no strategy can be trained:", *reasons]))
        planned = config.rounds * setting.plan.round_seconds
        race = Race(
            setting, data, out, seeds, processes or available_cores(), watch or Watch(), ends,
            3600 * hours if hours else planned,
        )  # fmt: skip
        advice = race.run(candidates, skipped, target)
        write_text(out / "advice.json", json.dumps(advice.to_json(), indent=1))
    return advice


def _copied(devices: str | Path, out: Path) -> Path:
    """Copy the fleet's file into the folder of the advice, since the runs depend on it."""
    source = find_fleet(devices)
    copy, text = out / f"devices{source.suffix.lower()}", read_text(source, FleetError)
    if copy.exists() and copy.read_text(encoding="utf-8") != text:
        raise ConfigError(
            f"{out} has advice for other devices ({copy}). Choose another folder with --out, or "
            "delete this one."
        )
    write_text(copy, text)
    return copy
