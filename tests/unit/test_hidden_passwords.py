"""Tracebacks with the values of locals, as tools collect them, show no password."""

from __future__ import annotations

import traceback

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from sqla_shard.dialects import backend_for
from sqla_shard.dialects.base import PasswordSource


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_server_that_is_not_there(is_asked):
    url = make_url("mysql+pymysql://app@127.0.0.1:1")
    source = None
    if is_asked:
        source = PasswordSource(lambda login: "".join(["ses", "ame"]), url, ["server1"])
    else:
        url = url.set(password="".join(["ses", "ame"]))
    engine = backend_for("mysql", driver="pymysql").open(
        url, {}, timeout=2, password=source
    )
    with pytest.raises(OperationalError, match="2003") as caught:
        engine.connect()
    found = traceback.TracebackException.from_exception(
        caught.value, capture_locals=True
    )
    text = "".join(found.format())
    assert "mutable_cparams" in text or "cparams" in text
    assert "sesame" not in text
    engine.dispose()
