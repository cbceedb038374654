"""Which local states a node deletes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedplt_flower.node.local_state import not_needed


def order(round, committed, oldest):
    fields = {"local_state_round": committed, "oldest_state_round": oldest}
    return SimpleNamespace(round=round, **fields)


@pytest.mark.parametrize(
    ("stored", "given", "deleted"),
    [
        ([1, 3, 4, 7], order(8, 7, 5), [1, 3]),
        ([1, 3, 4], order(5, 1, 4), [3, 4]),  # two rejections: only round 1 was committed
        ([3, 4], order(5, -1, 4), [3, 4]),
        ([0, 5], order(5, 0, 0), []),  # the same order once more
        ([2, 9], order(3, 2, -1), []),  # a later round, of a run before
        ([2**30, 5], order(6, 2**30, 2**30), [5]),  # a simulation restored from a checkpoint
    ],
)
def test_a_committed_state_is_never_deleted_before_the_next_one(stored, given, deleted):
    assert not_needed(stored, given) == deleted
