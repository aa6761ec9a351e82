"""Options of schema commands, and which shards they name."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sqla_shard.exc import SchemaOptionError
from sqla_shard.schema import RunOptions
from sqla_shard.schema.selection import parse_shards
from sqla_shard.topology.keyspaces import as_ranges


@given(st.sets(st.integers(0, 65_535), min_size=1, max_size=50))
def test_ranges_are_read_as_they_are_written(shard_ids):
    text = as_ranges(shard_ids, most=50)
    assert parse_shards(text) == sorted(shard_ids)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_ranges_that_are_not_shown_are_counted(shard_ids):
    text = as_ranges(shard_ids, most=2)
    shown, _, more = text.partition(" and ")
    found = parse_shards(shown)
    count = int(more.removesuffix(" more")) if more else 0
    assert len(found) + count == len(shard_ids)
    assert set(found) <= shard_ids


@pytest.mark.parametrize(
    "text", ["", " ", "a", "1-", "-1", "3-1", "1,,2", "0x1", "65536", "1 2"]
)
def test_an_option_without_shards_is_refused(text):
    with pytest.raises(SchemaOptionError, match="0-511,600") as raised:
        parse_shards(text)
    assert raised.value.option == "shards"


def test_options_are_parsed():
    found = RunOptions.parse(
        {
            "shards": "0-2, 5",
            "servers": "a, b",
            "jobs": "2",
            "wave": "8",
            "pause": "0.5",
            "lock_wait": "1",
            "runner-wait": "2",
            "continue-on-error": "Yes",
            "reference": "3",
            "report": "a.json",
            "tenant": "somebody else's",
        }
    )
    assert found == RunOptions(
        shards=(0, 1, 2, 5),
        servers=("a", "b"),
        jobs=2,
        wave=8,
        pause=0.5,
        lock_wait=1.0,
        runner_wait=2.0,
        continue_on_error=True,
        reference=3,
        report="a.json",
    )
    assert RunOptions.parse({}) == RunOptions()


@pytest.mark.parametrize("name", ["shards", "servers", "lock_wait"])
def test_a_slip_of_the_pen_is_not_ignored(name):
    for slip in (name[:-1], name + "s", name[1:], name[:-1].upper()):
        with pytest.raises(SchemaOptionError, match=f"did you mean {name}"):
            RunOptions.parse({slip: "1"})


def test_lists_may_be_given_in_parts():
    found = RunOptions.parse({"shards": ["1-2", "5"], "servers": ["a", "b,c"]})
    assert found.shards == (1, 2, 5)
    assert found.servers == ("a", "b", "c")


def test_other_options_are_given_once():
    with pytest.raises(SchemaOptionError, match="is repeated"):
        RunOptions.parse({"lock-wait": ["1"], "lock_wait": ["2"]})


def test_case_does_not_matter():
    assert RunOptions.parse({"SHARDS": "0"}).shards == (0,)
