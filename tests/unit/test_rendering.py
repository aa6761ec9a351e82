"""From compiled text to the text of one shard."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sqla_shard.engine.rendering import Place, render, statements_for
from sqla_shard.ids import DEFAULT_LAYOUT, pack
from sqla_shard.types.shard_bound import ComparedId, IdSlot, Prefix


def place(shard_id: int) -> Place:
    nothing: Any = None
    return Place(
        keyspace="objects",
        shard_id=shard_id,
        server="server1",
        schema=f"db{shard_id:05d}",
        engine=nothing,
        backend=nothing,
    )


def slot(*ids: int) -> IdSlot:
    return IdSlot(ids, 1, DEFAULT_LAYOUT, whole=False)


@pytest.mark.parametrize("placeholder", ["%s", "?"])
def test_schema_addresses_and_prefixes(placeholder: str) -> None:
    text = (
        f"SELECT local_id + {placeholder} FROM __sqla_shard__.pins "
        f"WHERE local_id = {placeholder} AND title = {placeholder}"
    )
    parameters = (
        Prefix(1, DEFAULT_LAYOUT),
        ComparedId(pack(7, 1, 42), 1, DEFAULT_LAYOUT),
        "boats",
    )
    here = render(text, parameters, place(7), placeholder)
    assert here == (
        text.replace("__sqla_shard__", "db00007"),
        (pack(7, 1, 0), 42, "boats"),
    )
    # On another shard the same id is beyond every local id, in order.
    assert render(text, parameters, place(6), placeholder)[1][1] == 2**36
    assert render(text, parameters, place(8), placeholder)[1][1] == -1


def test_each_shard_gets_its_own_ids_of_a_list() -> None:
    text = "SELECT 1 FROM t WHERE id IN (%s) AND n = %s"
    parameters = (slot(pack(1, 1, 5), pack(2, 1, 6), pack(1, 1, 7)), 3)
    assert render(text, parameters, place(1), "%s") == (
        "SELECT 1 FROM t WHERE id IN (5,7) AND n = %s",
        (3,),
    )
    assert render(text, parameters, place(2), "%s")[0].count("IN (6)") == 1
    # NOT IN () would be no SQL, NOT IN (NULL) never true.
    assert "IN (-1)" in render(text, parameters, place(3), "%s")[0]


def test_marks_in_literals_are_not_placeholders() -> None:
    text = """SELECT '?', "a?b", 'it''s ?', `c?` FROM t WHERE x = ? AND """
    text += "id IN (?)"
    rendered, values = render(text, ("v", slot(pack(1, 1, 9))), place(1), "?")
    assert rendered == text[: -len("(?)")] + "(9)"
    assert values == ("v",)


def test_percent_signs_stay_escaped() -> None:
    text = "SELECT '100%%' LIKE '%%s' FROM t WHERE x = %s AND id IN (%s)"
    rendered, values = render(text, ("v", slot(pack(1, 1, 9))), place(1), "%s")
    # The driver formats it once more, with the remaining parameters.
    assert rendered % values == (
        "SELECT '100%' LIKE '%s' FROM t WHERE x = v AND id IN (9)"
    )


@given(
    st.lists(
        st.one_of(
            st.sampled_from(["a", "=", ",", " ", "'q?'", '"?"', "'%%s'"]),
            st.integers(0, 3).map(lambda n: ("slot", n)),
            st.just(("plain", 0)),
        ),
        max_size=12,
    )
)
def test_remaining_parameters_match_the_placeholders(parts: list[Any]) -> None:
    text, parameters = "", []
    for part in parts:
        if isinstance(part, tuple):
            kind, count = part
            text += " ? "
            parameters.append(
                slot(*(pack(1, 1, n + 1) for n in range(count)))
                if kind == "slot"
                else "value"
            )
        else:
            text += part
    rendered, values = render(text, tuple(parameters), place(1), "?")
    without_literals = re.sub(r"'[^']*'|\"[^\"]*\"", "", rendered)
    assert without_literals.count("?") == len(values)
    assert values == ("value",) * len(values)


@pytest.mark.parametrize(
    ("text", "limited"),
    [
        ("SELECT id FROM t", "SELECT id FROM t\nLIMIT 5"),
        ("\nselect id from t", "\nselect id from t\nLIMIT 5"),
        ("select id from t for update", "select id from t\nLIMIT 5 for update"),
        ("SELECT id FROM t limit 9", None),
        ("SELECT id FROM t offset 9 rows", None),
        ("SELECT id FROM t;", None),
        ("show tables", None),
    ],
)
def test_where_a_limit_is_added(text: str, limited: str | None) -> None:
    sent = statements_for(text, (), [place(1)], "?", most_rows=4)
    assert sent == [(limited or text, ())]
