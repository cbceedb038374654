"""Devices that are there at some times: a CSV of chances, one row per round."""

from __future__ import annotations

import pytest

from fedplt import ConfigError
from fedplt.federation.availability import Availability
from fedplt.federation.round_costs import RoundCosts
from tests.support.jobs import blob_job

DEVICES = "name,count,mflops,kbps_down,kbps_up\nphone,2,10,100,100\nlaptop,3,20,100,100\n"


@pytest.fixture
def job(tmp_path):
    def make(text, **fleet):
        (tmp_path / "devices.csv").write_text(DEVICES)
        (tmp_path / "availability.csv").write_text(text)
        paths = {key: str(tmp_path / f"{key}.csv") for key in ("devices", "availability")}
        groups = [{"num_clients": 2, "ratio": 0.5}, {"num_clients": 3, "ratio": 0.5}]
        return blob_job(clients={"groups": groups}, fleet={"ratios": "groups", **paths, **fleet})

    return make


def present(job, rounds):
    there = Availability(job, RoundCosts(job))
    return [there.attend(round).present for round in range(rounds)]


def test_rounds_go_through_the_rows_and_start_again(job):
    rounds = present(job("hour,phone,laptop\n# night\n0,1,0\n1,0,1\n2,0,0\n"), 7)
    assert rounds == [[0, 1], [2, 3, 4], [], [0, 1], [2, 3, 4], [], [0, 1]]


def test_a_device_without_a_column_is_always_there(job):
    assert present(job("phone\n0\n"), 2) == [[2, 3, 4], [2, 3, 4]]


def test_chances_are_met_and_multiply_with_dropout(job):
    given = job("phone,laptop\n0.8,0.4\n", dropout=0.5)
    rounds = present(given, 400)
    assert present(given, 400) == rounds
    phones = sum(k < 2 for there in rounds for k in there) / 800
    laptops = sum(k >= 2 for there in rounds for k in there) / 1200
    assert phones == pytest.approx(0.4, abs=0.06)
    assert laptops == pytest.approx(0.2, abs=0.06)


def test_another_file_is_another_run(job):
    """A resumed run refuses a changed file by this fingerprint."""
    fingerprints = {job(text).devices.fingerprint for text in ("phone\n1\n", "phone\n0.5\n")}
    assert len(fingerprints) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("phone,labtop\n1,1\n", "line 1: there is no device 'labtop'. Did you mean 'laptop'?"),
        ("phone,phone\n1,1\n", "two columns 'phone'"),
        ("phone\n1\n90 %\n", "line 3: phone is '90 %'"),
        ("phone\n1.5\n", "phone is '1.5'"),
        ("phone\nnan\n", "phone is 'nan'"),
        ("phone\n", "has no rows"),
        ("", "is empty"),
    ],
)
def test_wrong_files_are_refused(job, text, words):
    with pytest.raises(ConfigError, match=r"fleet\.availability: ") as raised:
        job(text)
    assert words in str(raised.value)
