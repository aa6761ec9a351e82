"""Filling in placeholders."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from sqlalchemy import make_url

from sqla_shard.exc import TopologyError
from sqla_shard.topology import fill, Topology

ENVIRON = {"USER_NAME": "app", "PW": "p@ss/w:rd", "NESTED": "${PW}$$"}
SHORT = {"s": {"range": [0, 1], "master": "h"}}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("", ""),
        ("plain", "plain"),
        ("${USER_NAME}", "app"),
        ("a${USER_NAME}b${USER_NAME}", "aappbapp"),
        ("pa$$word", "pa$word"),
        ("$${USER_NAME}", "${USER_NAME}"),
        ("$$${USER_NAME}", "$app"),
        ("{USER_NAME}", "{USER_NAME}"),
        # Values are taken as they are, and not searched again.
        ("${PW}", "p@ss/w:rd"),
        ("${NESTED}", "${PW}$$"),
    ],
)
def test_fill(text: str, filled: str) -> None:
    assert fill(text, ENVIRON) == filled


@given(st.text())
def test_any_text_can_be_written_with_doubled_dollars(text: str) -> None:
    assert fill(text.replace("$", "$$"), {}) == text


def test_a_name_without_a_value() -> None:
    with pytest.raises(TopologyError) as caught:
        fill("hunter2${MISSING}", ENVIRON)
    (problem,) = caught.value.problems
    assert problem.place == "${MISSING}"
    assert "set the environment variable MISSING" in problem.message
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["$PW", "${}", "hunter2$", "${PW", "$ {PW}"])
def test_a_dollar_that_begins_nothing(text: str) -> None:
    with pytest.raises(TopologyError) as caught:
        fill(text, ENVIRON)
    (problem,) = caught.value.problems
    assert problem.place == "user or password"
    assert f"at character {text.index('$') + 1} " in problem.message
    assert "hunter2" not in str(caught.value)


def test_a_password_cannot_change_the_url() -> None:
    url = make_url("mysql://app:${PW}@h:3306")
    assert url.password is not None
    filled = url.set(password=fill(url.password, ENVIRON))
    assert (filled.host, filled.password) == ("h", "p@ss/w:rd")


class TestPolicy:
    def test_names_are_the_applications_choice(self) -> None:
        options: dict[str, Any] = {"url": "mysql://x:${PW}@{host}", "environ": ENVIRON}
        Topology.from_mapping(SHORT, placeholders=["PW"], **options)
        with pytest.raises(TopologyError, match=r"allows \(none\)"):
            Topology.from_mapping(SHORT, placeholders=[], **options)

    def test_default_environment_is_that_of_the_process(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MYSQL_USER", "app")
        monkeypatch.setenv("MYSQL_PASSWORD", "")
        Topology.from_mapping(SHORT)
        monkeypatch.delenv("MYSQL_USER")
        with pytest.raises(TopologyError, match="variable MYSQL_USER"):
            Topology.from_mapping(SHORT)

    def test_one_text_is_not_a_collection_of_names(self) -> None:
        with pytest.raises(TopologyError, match="use a collection of names"):
            Topology.from_mapping(SHORT, placeholders="MYSQL_USER")

    def test_nothing_is_filled_in(self) -> None:
        environ = {"MYSQL_USER": "joe", "MYSQL_PASSWORD": "hunter2"}
        topology = Topology.from_mapping(SHORT, environ=environ)
        for text in (repr(topology.keyspace("objects")), str(topology.to_mapping())):
            assert "mysql://${MYSQL_USER}:${MYSQL_PASSWORD}@h" in text
            assert "hunter2" not in text
