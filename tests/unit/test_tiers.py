"""The lists of tests/tiers.py name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import tiers

TESTS = Path(tiers.__file__).parent


@pytest.mark.parametrize("name", sorted(tiers._TIMED.union(*tiers._LEFT_OUT.values())))
def test_listed_tests_exist(name: str) -> None:
    stem, _, test = name.partition(".")
    paths = [*TESTS.rglob(f"{stem}.py")]
    assert paths
    # Some classes of tests are made of one that another module has.
    sources = [*paths, *TESTS.glob("suites/*.py")]
    wanted = re.compile(rf"def {test}\(" if test else "def test_")
    assert any(wanted.search(source.read_text()) for source in sources)


def test_names_of_timed_tests_are_those_of_their_ids() -> None:
    listed = "tests/unit/test_topology_model.py::TestSize::test_loads_quickly"
    assert tiers.measures_time(listed)
    assert tiers.measures_time(f"{listed}[a::b.py-c]")
    assert not tiers.measures_time("tests/suites/merged.py::sqlite::M::test")
