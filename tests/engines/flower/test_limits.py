"""What a node's owner allows."""

from __future__ import annotations

import os
from datetime import date, datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedplt.engines.flower.ledger import DAYS, add_bytes, bytes_used
from fedplt.engines.flower.limits import Limits, load_limits, refusal, within
from fedplt.engines.flower.power import on_mains, power
from fedplt.errors import ConfigError

pytestmark = pytest.mark.slow

NOON = datetime(2026, 1, 31, 12, 0)
TODAY = date(2026, 1, 31)


def asked(limits: Limits, **changes) -> str | None:
    request = {
        "node": "n3", "ratio": 0.5, "bytes_down": 30_000_000, "bytes_up": 10_000_000,
        "expected_seconds": 90.0, "now": NOON, "on_mains": False,
    }  # fmt: skip
    return refusal(limits, **{**request, **changes})


def test_no_limits_allow_everything():
    assert asked(Limits()) is None


@pytest.mark.parametrize(
    ("limits", "changes", "expected"),
    [
        (
            Limits(max_ratio=0.25), {},
            "node n3 does not allow more than 0.25 of the model (limits.toml: max_ratio); "
            "it was asked for 0.5",
        ),
        (
            Limits(bytes_per_round=39_999_999), {},
            "node n3 does not allow more than 40.0 MB in a round (limits.toml: bytes_per_round); "
            "this one takes 40.0 MB",
        ),
        (
            Limits(bytes_per_day=100_000_000), {"bytes_today": 70_000_000},
            "node n3 does not allow more than 100.0 MB in a day (limits.toml: bytes_per_day); "
            "this round takes 40.0 MB after 70.0 MB today",
        ),
        (
            Limits(seconds_per_round=60.0), {},
            "node n3 does not allow more than 60.00 s in a round (limits.toml: "
            "seconds_per_round); this one is expected to take 90.00 s",
        ),
        (
            Limits(hours=["22:00-06:00", "13:00-14:00"]), {},
            "node n3 does not allow training outside 22:00-06:00, 13:00-14:00 (limits.toml: "
            "hours); its clock says 12:00",
        ),
        (
            Limits(mains_power_only=True), {},
            "node n3 does not allow training on battery (limits.toml: mains_power_only); "
            "it is not on mains power",
        ),
    ],
)  # fmt: skip
def test_refusals(limits, changes, expected):
    assert asked(limits, **changes) == expected


@pytest.mark.parametrize(
    ("limits", "changes"),
    [
        (Limits(max_ratio=0.5), {}),
        (Limits(bytes_per_round=40_000_000), {}),
        (Limits(bytes_per_day=100_000_000), {"bytes_today": 60_000_000}),
        (Limits(seconds_per_round=60.0), {"expected_seconds": None}),  # not known before
        (Limits(hours=["22:00-12:01"]), {}),
        (Limits(mains_power_only=True), {"on_mains": True}),
    ],
)
def test_what_is_within_the_limits_is_allowed(limits, changes):
    assert asked(limits, **changes) is None


def test_an_unknown_number_of_bytes_is_refused_only_where_days_are_limited():
    assert "ledger" in asked(Limits(bytes_per_day=10**12), bytes_today=None)
    assert asked(Limits(), bytes_today=None) is None


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("22:00-06:00", [time(22, 0), time(0, 0), time(5, 59)], [time(6, 0), time(21, 59)]),
        ("08:30-17:00", [time(8, 30), time(16, 59)], [time(8, 29), time(17, 0), time(0, 0)]),
        ("00:00-24:00", [time(0, 0), time(23, 59)], []),
        ("23:00-24:00", [time(23, 30)], [time(0, 0)]),
        ("9:00-00:00", [time(23, 59)], [time(0, 0), time(8, 59)]),
    ],
)
def test_hours(hours, inside, outside):
    assert all(within(hours, moment) for moment in inside)
    assert not any(within(hours, moment) for moment in outside)


@given(st.times(), st.times(), st.times())
def test_hours_and_the_rest_of_the_day_share_no_moment(start, end, moment):
    first, last = f"{start:%H:%M}", f"{end:%H:%M}"
    if first != last:
        assert within(f"{first}-{last}", moment) != within(f"{last}-{first}", moment)


def test_limits_from_a_file(tmp_path):
    path = tmp_path / "limits.toml"
    assert load_limits(path) == Limits()
    path.write_text('max_ratio = 0.25\nbytes_per_round = "50 MB"\nbytes_per_day = 2000\n')
    read = load_limits(path)
    assert (read.max_ratio, read.bytes_per_round, read.bytes_per_day) == (0.25, 50_000_000, 2000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_ratio = 2.0", ["max_ratio", "less than or equal to 1", "line 1"]),
        ("ratio = 0.5", ["ratio: there is no such key", "max_ratio"]),
        ('hours = ["8-17"]', ["'8-17' is no time of the day", "22:00-06:00"]),
        ('hours = ["08:00-25:00"]', ["no day has"]),
        ('hours = ["08:00-08:00"]', ["00:00-24:00"]),
        ('bytes_per_day = "2 GHz"', ["GHz", "2 GB"]),
        ("bytes_per_day = 0", ["greater than 0"]),
        ("max_ratio = ", ["not valid TOML"]),
    ],
)
def test_mistakes_in_limits(tmp_path, text, expected):
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_limits(path)
    assert all(part in str(caught.value) for part in [*expected, "limits.toml"])


def test_the_ledger_counts_by_day(tmp_path):
    path = tmp_path / "state" / "bytes.json"
    assert bytes_used(path, TODAY) == 0
    add_bytes(path, TODAY, 100)
    add_bytes(path, TODAY, 20)
    assert bytes_used(path, TODAY) == 120
    tomorrow = date(2026, 2, 1)
    assert bytes_used(path, tomorrow) == 0
    add_bytes(path, tomorrow, 7)
    assert (bytes_used(path, TODAY), bytes_used(path, tomorrow)) == (120, 7)


def test_the_ledger_forgets_old_days(tmp_path):
    path = tmp_path / "bytes.json"
    for day in range(1, DAYS + 2):
        add_bytes(path, date.fromordinal(TODAY.toordinal() + day), day)
    assert bytes_used(path, date.fromordinal(TODAY.toordinal() + 1)) == 0
    assert bytes_used(path, date.fromordinal(TODAY.toordinal() + 2)) == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"2026-01-31": -1}', '{"2026-01-31": "much"}', "\0"])
def test_a_damaged_ledger_is_unknown_today_and_empty_tomorrow(tmp_path, text):
    path = tmp_path / "bytes.json"
    path.write_text(text)
    moment = NOON.timestamp()
    os.utime(path, (moment, moment))
    assert bytes_used(path, TODAY) is None
    add_bytes(path, TODAY, 100)
    assert bytes_used(path, TODAY) is None
    tomorrow = date(2026, 2, 1)
    add_bytes(path, tomorrow, 100)
    assert bytes_used(path, tomorrow) == 100


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ({}, True),
        ({"AC": {"type": "Mains", "online": "0"}}, True),  # no battery: it could not run
        (
            {"AC": {"type": "Mains", "online": "1"}, "BAT0": {"type": "Battery"}},
            True,
        ),
        (
            {"AC": {"type": "Mains", "online": "0"}, "BAT0": {"type": "Battery"}},
            False,
        ),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Full"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Unknown"}}, True),
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, True),
    ],
)
def test_mains_power(tmp_path, supplies, expected):
    for name, values in supplies.items():
        (tmp_path / name).mkdir()
        for key, value in values.items():
            (tmp_path / name / key).write_text(value + "\n")
    assert on_mains(tmp_path) is expected
    assert power(tmp_path).reason


def test_where_linux_says_nothing_mains_power_is_assumed_and_said(tmp_path):
    assert power(tmp_path / "missing") == (
        True, f"no battery is known ({tmp_path / 'missing'} is empty): taken as mains power",
    )  # fmt: skip
