"""How long recorded rounds take on the devices, client by client, and on changed devices.

What each client trains and which clients take part stay as recorded. So no new training is needed:
the cost model gives the time of a round.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedplt.federation import Availability, History, Job, RoundCosts, RoundRecord

Seconds = NDArray[np.float64]
"""Seconds of a round, by client."""


def client_seconds(job: Job) -> Seconds:
    """Seconds of a round, upload included, of every client that takes part."""
    return Availability(job, RoundCosts(job)).predicted(0)


def late_clients(job: Job) -> list[int]:
    """Clients that are left out because they take too long."""
    return Availability(job, RoundCosts(job)).attend(0).late


def participants(record: RoundRecord, num_clients: int) -> list[int]:
    """The clients that trained in a round."""
    away = {*record.dropped, *record.late}
    chosen = (record.sampling or {}).get("chosen") or range(num_clients)
    return [client for client in chosen if client not in away]


def never_there(history: History, num_clients: int) -> list[int]:
    """Clients that took part in no round because they were late or away each time."""
    away = [{*record.dropped, *record.late} for record in history.rounds]
    return sorted(set(range(num_clients)).intersection(*away)) if away else []


def retimed(history: History, before: Seconds, after: Seconds) -> History:
    """The history with simulated times as if the clients' round times had changed."""
    rounds, total = [], 0.0
    for record in history.rounds:
        who = participants(record, len(before))
        factor = float(after[who].max() / before[who].max()) if who else 1.0
        seconds = factor * record.cost.simulated_seconds
        total += seconds
        cost = replace(record.cost, simulated_seconds=seconds)
        whole = replace(record.total, simulated_seconds=total)
        rounds.append(replace(record, cost=cost, total=whole))
    return replace(history, rounds=rounds)


def idle_share(history: History, seconds: Seconds) -> float:
    """The share of the participants' time spent waiting for the slowest one of their round."""
    waited = spent = 0.0
    for record in history.rounds:
        who = participants(record, len(seconds))
        if who:
            longest = float(seconds[who].max())
            spent += longest * len(who)
            waited += longest * len(who) - float(seconds[who].sum())
    return waited / spent if spent else 0.0


def joules(job: Job, history: History, seconds: Seconds) -> list[float]:
    """Cumulative energy after each round, of the devices whose watts are known."""
    assert job.devices is not None
    profiles = job.devices.profiles
    watts = np.array([profile.watts or 0.0 for profile in profiles])
    busy = seconds - [profile.latency_seconds for profile in profiles]
    rounds = [
        float((watts * busy)[participants(record, len(seconds))].sum()) for record in history.rounds
    ]
    return [float(each) for each in np.cumsum(rounds)]
