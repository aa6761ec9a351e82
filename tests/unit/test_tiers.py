"""The lists of tests/tiers.py name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import tiers
from tests.test_layers import LAYERS

TESTS = Path(tiers.__file__).parent
ROOMS = ("unit", "sqlite", "suites")


@pytest.mark.parametrize("name", sorted(tiers._TIMED.union(*tiers._LEFT_OUT.values())))
def test_listed_tests_exist(name: str) -> None:
    stem, _, test = name.partition(".")
    paths = [*TESTS.rglob(f"{stem}.py")]
    assert paths
    # Some classes of tests are made of one that another module has.
    sources = [*paths, *TESTS.glob("suites/*.py")]
    wanted = re.compile(rf"def {test}\(" if test else "def test_")
    assert any(wanted.search(source.read_text()) for source in sources)


def test_each_room_is_an_area_with_tests() -> None:
    assert {*LAYERS} - {"api", "__init__"} <= tiers._AREAS.keys()
    paths = [path for room in ROOMS for path in TESTS.glob(f"{room}/*.py")]
    for area in tiers._AREAS:
        assert any(tiers._matches_area(path, area) for path in paths), area


def test_names_of_timed_tests_are_those_of_their_ids() -> None:
    listed = "tests/unit/test_topology_model.py::TestSize::test_loads_quickly"
    assert tiers.measures_time(listed)
    assert tiers.measures_time(f"{listed}[a::b.py-c]")
    assert not tiers.measures_time("tests/suites/merged.py::sqlite::M::test")
