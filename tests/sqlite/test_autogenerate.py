"""Revisions are generated, run and compared on SQLite."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.shared.autogenerating import Finding
from tests.shared.autogenerating import Generating


@pytest.fixture
def database(tmp_path: Path) -> Any:
    numbers = count()

    def make() -> Any:
        path = tmp_path / f"db{next(numbers)}.sqlite"
        return create_engine(f"sqlite:///{path}", poolclass=NullPool)

    return make


class TestGenerating(Generating):
    pass


class TestFinding(Finding):
    alters = False
