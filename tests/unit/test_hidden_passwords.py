"""Tracebacks with the values of locals, as tools collect them, show no password."""

from __future__ import annotations

import asyncio
import socket
import traceback

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

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
    text = with_locals(caught.value)
    assert "mutable_cparams" in text or "cparams" in text
    assert "sesame" not in text
    engine.dispose()


def with_locals(error):
    found = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "".join(found.format())


@pytest.mark.parametrize(("patience", "seconds"), [(0.1, 5), (5, 0.1)])
def test_a_connection_that_is_given_up(patience, seconds):
    """By the application, whose time is over, or by the driver."""
    pytest.importorskip("asyncmy")

    async def connect(port):
        url = make_url(f"mysql+asyncmy://app@127.0.0.1:{port}")
        url = url.set(password="".join(["ses", "ame"]))
        made = backend_for("mysql", driver="asyncmy").open(url, {}, timeout=seconds)
        engine = AsyncEngine(made)
        with pytest.raises((TimeoutError, OperationalError)) as caught:
            async with asyncio.timeout(patience), engine.connect():
                pass
        await engine.dispose()
        return caught

    with socket.create_server(("127.0.0.1", 0)) as silent:
        caught = asyncio.run(connect(silent.getsockname()[1]))
    text = with_locals(caught.value)
    assert "cparams" in text
    assert "sesame" not in text
