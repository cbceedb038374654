from __future__ import annotations

import pytest

from tests.support.tiny import CONFIG


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(CONFIG.replace("rounds = 6", "rounds = 3"))
    return path
