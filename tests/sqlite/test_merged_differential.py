"""Merged answers: SQLite shards against one SQLite database."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from tests.shared.clusters import on_sqlite
from tests.shared.merged import compared_rows
from tests.shared.merged import MergedDifferential
from tests.shared.merged_computed import MergedComputed
from tests.shared.merged_corners import MergedCorners
from tests.shared.merged_numbers import compared_numbers
from tests.shared.merged_numbers import MergedNumbers
from tests.shared.merged_pages import MergedPages
from tests.shared.web_forms import WebForms

cluster = on_sqlite()
compared = compared_rows()
numbers = compared_numbers()


@pytest.fixture(scope="module")
def plain_engine():
    engine = create_engine("sqlite://")
    yield engine
    engine.dispose()


class TestMergedDifferential(MergedDifferential):
    pass


class TestMergedPages(MergedPages):
    pass


class TestMergedComputed(MergedComputed):
    pass


class TestMergedCorners(MergedCorners):
    pass


class TestWebForms(WebForms):
    pass


class TestMergedNumbers(MergedNumbers):
    pass
