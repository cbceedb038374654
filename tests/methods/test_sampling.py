"""Every method works with client sampling: what is expected of all clients is what they send."""

from __future__ import annotations

import pytest

from fedplt.methods import METHODS
from tests.support.jobs import blob_job
from tests.support.runs import final_state, same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_budget_for_all_is_full_participation_bit_for_bit(name):
    """The divisor made of all clients' assignments equals the one made of their updates."""

    def run(**sampling):
        return final_state(blob_job(rounds=3, method={"name": name}, sampling=sampling))[1]

    assert same(run(name="all"), run(name="ocs", budget=5.0, estimator="unbiased"))
