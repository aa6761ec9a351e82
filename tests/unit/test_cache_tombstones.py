"""The content of a tombstone: the tokens of its owners, and their ends."""

from __future__ import annotations

from sqla_shard.cache.stores import memcached
from sqla_shard.cache.stores.memcached import SLACK, with_token, without_token

ONE, TWO = b"1" * 16, b"2" * 16


def test_each_takes_away_its_own():
    both = with_token(with_token(b"", ONE, 60), TWO, 60)
    assert without_token(both, ONE) == with_token(b"", TWO, 60)
    assert without_token(without_token(both, TWO), ONE) == b""
    assert without_token(both, b"3" * 16) == both
    assert without_token(b"", ONE) == b""


def test_once_is_enough():
    twice = with_token(with_token(b"", ONE, 10), ONE, 60)
    assert len(twice) == len(with_token(b"", ONE, 60))
    assert without_token(twice, ONE) == b""


def test_that_of_a_dead_process_does_not_last(monkeypatch):
    now = 1_000_000.0
    monkeypatch.setattr(memcached, "time", lambda: now)
    dead = with_token(b"", ONE, 10)
    now += 10 + SLACK - 1
    data = with_token(dead, TWO, 10)
    assert without_token(data, TWO) == dead
    now += 1
    assert without_token(data, TWO) == b""


def test_foreign_values_have_no_token():
    assert without_token(b"x" * 25, ONE) == b""
