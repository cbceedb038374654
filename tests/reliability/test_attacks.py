"""A few of each attack of ``make reliability``, and that the attacks find planted mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.reliability import damage, power_loss
from tools.reliability_page import ATTACKS, PAGE, page

from fedplt.federation.run_folder import sealed
from fedplt.federation.run_folder.records_file import RecordsFile

FEW = {"power_loss": 12, "damage": 10, "kills": 1, "fuzz": 260}
BY_MODULE = {attack.module: attack for attack in ATTACKS}


@pytest.mark.slow
@pytest.mark.parametrize("module", FEW)
def test_promises_hold(module):
    attack = BY_MODULE[module]
    assert attack.failed(attack.run(FEW[module], seed=11)) == []


def test_the_page_has_a_section_per_attack():
    expected = re.findall(r"^## .*|^Attack .*", page({}), re.MULTILINE)
    text = Path(PAGE).read_text(encoding="utf-8")
    found = re.findall(r"^## .*|^Attack .*", text, re.MULTILINE)
    assert found == expected, "docs/reliability.md is old: make reliability"


def test_the_page_says_what_broke():
    assert "All promises held" in page({"damage": {"unnoticed": 0, "tracebacks": 0}})
    assert "1 tracebacks" in page({"damage": {"unnoticed": 0, "tracebacks": 1}})
    assert "1 same bits of 2 runs" in page({"kills": {"runs": 2, "same bits": 1}})


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", ["records", "files", "folders"])
def test_power_loss_finds_a_sync_that_is_missing(forgotten, monkeypatch):
    if forgotten == "records":
        monkeypatch.setattr(RecordsFile, "sync", lambda self: None)
    else:
        name = {"files": "sync", "folders": "sync_folder"}[forgotten]
        monkeypatch.setattr(f"fedplt.files.{name}", lambda path: None)
    attack = BY_MODULE["power_loss"]
    assert attack.failed(power_loss.run(10, seed=1))


@pytest.mark.slow
def test_damage_finds_a_seal_that_is_not_checked(monkeypatch):
    monkeypatch.setattr(sealed, "_digest", lambda text, kind: "1" * 64)
    monkeypatch.setattr(damage, "FILES", ("rounds.jsonl",))
    monkeypatch.setattr(damage, "DAMAGES", [damage._digit])
    assert BY_MODULE["damage"].failed(damage.run(6, seed=1))
