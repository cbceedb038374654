"""The experiments as data: every run can be planned, and has the numbers of the paper's tables."""

from __future__ import annotations

import pytest

from fedplt import ConfigError
from fedplt.federation.job import plan_without_data
from fedplt.planning.allocation import allocation_of
from reproduction.catalog import EXPERIMENTS, find_blocks

pytestmark = pytest.mark.slow

BLOCKS = [block for e in EXPERIMENTS.values() for block in e.blocks.values()]
FCN, RESNET = EXPERIMENTS["study"].blocks.values()

# (study, configuration, paper's layer sizes, ratio in percent, X, Std(X)) as printed
FCN_SIZES, RESNET_SIZES = (401_920, 131_328, 32_896, 1_290), (448, 4_640, 13_888, 55_296, 650)
TABLES = [
    (FCN, "deep-heavy", FCN_SIZES, 25.6, (0.222, 0.615, 0.154, 0.009), 0.2245),
    (FCN, "shallow-dominant", FCN_SIZES, 24.4, (0.872, 0.095, 0.024, 0.009), 0.361),
    (RESNET, "deep-heavy", RESNET_SIZES, 34.75,
     (0.00108, 0.01114, 0.06669, 0.89613, 0.02497), 0.34878),
    (RESNET, "shallow-dominant", RESNET_SIZES, 35.38,
     (0.01690, 0.17505, 0.26198, 0.52154, 0.02452), 0.18556),
]  # fmt: skip


@pytest.mark.parametrize(("block", "name", "sizes", "percent", "contributions", "std"), TABLES)
def test_the_papers_tables(block, name, sizes, percent, contributions, std):
    contestant = next(entry for entry in block.contestants if entry.name == name)
    found = allocation_of(sizes, contestant.layer_ratios)
    assert 100 * found.ratio == pytest.approx(percent, abs=0.05)
    assert found.contributions == pytest.approx(contributions, abs=1e-3)
    assert found.contributions_std == pytest.approx(std, abs=1e-3)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.experiment}-{block.pair}")
def test_every_run_can_be_planned(block):
    names = [contestant.name for contestant in block.contestants]
    assert len(set(names)) == len(names)
    for contestant in block.contestants:
        plan = plan_without_data(block.config(contestant, rounds=1, seed=1))
        assert not plan.uncovered
        if contestant.layer_ratios:
            wanted = allocation_of(plan.layers.sizes, contestant.layer_ratios).ratio
            assert plan.achieved_ratios.mean() == pytest.approx(wanted, rel=0.05)


def test_runs_are_shared_where_they_are_the_same():
    """One id means one configuration, in whichever experiment."""
    configs: dict[str, dict] = {}
    for block in BLOCKS:
        for contestant in block.contestants:
            values = block.config(contestant, rounds=1, seed=1).model_dump()
            known = configs.setdefault(block.run_id(contestant, 1), values)
            assert known == values
    assert "fashion-fcn-v1/fedavg-seed1" in configs
    exp1, exp2 = (EXPERIMENTS[name].blocks["fashion-fcn"] for name in ("exp1", "exp2"))
    assert exp1.run_id(exp1.contestants[0], 1) == exp2.run_id(exp2.contestants[0], 1)


def test_what_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="Did you mean 'exp1'"):
        find_blocks("exp11")
    with pytest.raises(ConfigError, match="exp3 has cifar-fcn"):
        find_blocks("exp3", "fashion-fcn")
    with pytest.raises(ConfigError, match="Did you mean 'fedplt'"):
        find_blocks("exp2", None, ["fedpltt"])
    [block] = find_blocks("exp1", "cifar-fcn", ["large"])
    assert [contestant.name for contestant in block.contestants] == ["large"]
