"""One statement for the shards of a server."""

from __future__ import annotations

import pytest

from sqla_shard.engine import rendering
from sqla_shard.engine.rendering import render, statements_for
from sqla_shard.ids import DEFAULT_LAYOUT, pack
from sqla_shard.types.shard_bound import ComparedId, Prefix
from tests.unit.test_rendering import place, slot

TEXT = (
    "SELECT __sqla_shard__.pins.local_id + %s AS id "
    "FROM __sqla_shard__.pins WHERE local_id IN (%s) AND title = %s "
    "AND link LIKE 'a%%s' AND local_id != %s"
)
PARAMETERS = (
    Prefix(1, DEFAULT_LAYOUT),
    slot(pack(1, 1, 5), pack(2, 1, 6), pack(1, 1, 7)),
    "boats",
    ComparedId(pack(2, 1, 6), 1, DEFAULT_LAYOUT),
)


def test_a_branch_for_each_shard() -> None:
    (found,) = statements_for(TEXT, PARAMETERS, [place(1), place(2)], "%s")
    text, values = found
    assert text == (
        f"SELECT db00001.pins.local_id + {pack(1, 1, 0)} AS id "
        "FROM db00001.pins WHERE local_id IN (5,7) AND title = %s "
        f"AND link LIKE 'a%%s' AND local_id != {2**36}\nUNION ALL\n"
        f"SELECT db00002.pins.local_id + {pack(2, 1, 0)} AS id "
        "FROM db00002.pins WHERE local_id IN (6) AND title = %s "
        "AND link LIKE 'a%%s' AND local_id != 6"
    )
    assert values == ("boats", "boats")


def test_question_marks() -> None:
    text = "SELECT 1 FROM __sqla_shard__.t WHERE a = ? AND b = 'it''s ?'"
    first, second = (
        text.replace("__sqla_shard__", name) for name in ("db00001", "db00002")
    )
    assert statements_for(text, ("x",), [place(1), place(2)], "?") == [
        (f"{first}\nUNION ALL\n{second}", ("x", "x"))
    ]


def test_one_shard_is_rendered_as_ever() -> None:
    one = place(1)
    assert statements_for(TEXT, PARAMETERS, [one], "%s") == [
        render(TEXT, PARAMETERS, one, "%s")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM __sqla_shard__.t ORDER BY a",
        "SELECT a FROM __sqla_shard__.t\n LIMIT 5",
        "SELECT a FROM __sqla_shard__.t FOR UPDATE",
        "SELECT a FROM __sqla_shard__.t FOR SHARE",
        "SELECT a FROM __sqla_shard__.t LOCK IN SHARE MODE",
        "SELECT a FROM __sqla_shard__.t GROUP BY a WITH ROLLUP",
        "WITH x AS (SELECT 1) SELECT a FROM x",
        "(SELECT a FROM __sqla_shard__.t)",
        "UPDATE __sqla_shard__.t SET a = 1",
    ],
)
def test_columns_that_a_branch_cannot_carry(text: str) -> None:
    places = [place(i) for i in range(3)]
    assert statements_for(text, (), places, "%s") == [
        (text.replace("__sqla_shard__", p.schema), ()) for p in places
    ]


def test_names_that_look_like_clauses_do_not_matter() -> None:
    text = "SELECT limits, order_by, within FROM __sqla_shard__.t"
    assert len(statements_for(text, (), [place(1), place(2)], "%s")) == 1


def test_the_limit_of_a_subquery_is_its_own() -> None:
    text = "SELECT (SELECT 1 FROM (SELECT a FROM {}.t LIMIT 5) AS x) AS n"
    (found,) = statements_for(
        text.format("__sqla_shard__"), (), [place(1), place(2)], "%s"
    )
    assert found[0].split("\nUNION ALL\n") == [
        text.format("db00001"),
        text.format("db00002"),
    ]
    # A parenthesis in a literal may not hide the LIMIT of a branch.
    text = "SELECT a FROM __sqla_shard__.t WHERE a = '(' LIMIT 5 OFFSET ')'"
    assert len(statements_for(text, (), [place(1), place(2)], "%s")) == 2


def test_long_statements_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [place(i) for i in range(10)]
    monkeypatch.setattr(rendering, "MOST_BRANCHES", 4)
    text = "SELECT a FROM __sqla_shard__.t WHERE a = %s"
    found = statements_for(text, ("3",), places, "%s")
    assert [len(values) for _, values in found] == [4, 4, 2]
    assert "\nUNION ALL\n".join(text for text, _ in found) == "\nUNION ALL\n".join(
        text.replace("__sqla_shard__", p.schema) for p in places
    )
    monkeypatch.setattr(rendering, "MOST_CHARACTERS", 110)
    found = statements_for(text, ("3",), places, "%s")
    assert [len(values) for _, values in found] == [2] * 5
    # A branch that is too long by itself is still sent.
    monkeypatch.setattr(rendering, "MOST_CHARACTERS", 1)
    assert len(statements_for(text, ("3",), places, "%s")) == 10


def test_long_values_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the packet once for each branch."""
    places = [place(i) for i in range(10)]
    text = "SELECT a FROM __sqla_shard__.t WHERE a = %s AND b = %s"
    for value in ("x" * 400_000, b"x" * 400_000):
        found = statements_for(text, (value, "3"), places, "%s")
        assert [len(values) for _, values in found] == [4] * 5
    monkeypatch.setattr(rendering, "MOST_CHARACTERS", 100)
    assert len(statements_for(text, ("x" * 101, 3), places, "%s")) == 10


def test_a_comment_at_the_end() -> None:
    text = "SELECT a FROM __sqla_shard__.t -- why"
    ((found, _),) = statements_for(text, (), [place(1), place(2)], "%s")
    assert found.splitlines()[1:] == ["UNION ALL", "SELECT a FROM db00002.t -- why"]


def test_whole_numbers_stand_in_the_text() -> None:
    """The driver would escape each of them for each branch."""
    places = [place(i) for i in range(2)]
    text = "SELECT a FROM __sqla_shard__.t WHERE a = %s AND b = %s AND c - %s"
    ((sent, values),) = statements_for(text, (7, True, -3), places, "%s")
    assert values == (True, True)
    assert sent.splitlines()[0].endswith("WHERE a = 7 AND b = %s AND c - (-3)")
