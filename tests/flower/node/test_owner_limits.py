"""What a node's owner allows."""

from __future__ import annotations

from datetime import datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedplt.errors import ConfigError, RunError
from fedplt.fleet import power_source
from fedplt_flower.node.daily_bytes import Moment
from fedplt_flower.node.owner_limits import AdmittedOrder, Limits, load_limits, within

pytestmark = pytest.mark.slow

NOON = Moment(datetime(2026, 1, 31, 12, 0).astimezone(), "", 0.0)


def asked(limits: Limits, ledger, on_mains: bool = False) -> str | None:
    try:
        work = AdmittedOrder(
            limits, node="n3", bytes_down=30_000_000, ledger=ledger, now=lambda: NOON,
            mains=lambda: on_mains,
        )  # fmt: skip
        work.admit_training(0.5, 2000)
        work.admit_upload(10_000_000)
    except RunError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(max_ratio=0.25), "max_ratio); the order is for 0.5."),
        (Limits(max_steps=1999), "max_steps); the order is for 2,000."),
        (Limits(bytes_per_round=39_999_999), "bytes_per_round); this one takes 40.0 MB."),
        (Limits(bytes_per_day=39_999_999), "bytes_per_day); this makes 40.0 MB today."),
        (Limits(hours=["22:00-06:00", "13:00-14:00"]), "hours); its clock shows 12:00."),
        (Limits(mains_power_only=True), "mains_power_only); it is not on mains power."),
    ],
)
def test_refusals(tmp_path, limits, expected):
    said = asked(limits, tmp_path / "bytes.json")
    assert said.startswith("node n3 does not allow")
    assert said.endswith(f"(limits.toml: {expected}")


@pytest.mark.parametrize(
    ("limits", "on_mains"),
    [
        (Limits(), False),
        (Limits(max_ratio=0.5, max_steps=2000), False),
        (Limits(bytes_per_round=40_000_000), False),
        (Limits(bytes_per_day=40_000_000), False),
        (Limits(seconds_per_round=60.0), False),
        (Limits(hours=["22:00-12:01"]), False),
        (Limits(mains_power_only=True), True),
    ],
)
def test_what_is_within_the_limits_is_allowed(tmp_path, limits, on_mains):
    assert asked(limits, tmp_path / "bytes.json", on_mains) is None


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
    assert power_source(tmp_path).on_mains is expected
    assert power_source(tmp_path).reason


def test_where_linux_says_nothing_mains_power_is_assumed_and_said(tmp_path):
    found = power_source(tmp_path / "missing")
    assert found.on_mains and f"no battery in {tmp_path / 'missing'}" in found.reason
