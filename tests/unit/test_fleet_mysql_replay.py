"""Replays of binary logs of MySQL, from logs that are written here."""

from __future__ import annotations

import struct
import uuid
from functools import partial

import pytest

from sqla_shard.fleet.replay import Moment, MySQLReplay
from sqla_shard.types.compression import require_zstd
from tests.unit import test_fleet_replay
from tests.unit.test_fleet_replay import archive, event, query

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "5b8f9d2e-0c1a-11ee-be56-0242ac120002"

replay = partial(test_fleet_replay.replay, kind=MySQLReplay)


def begin(*state):
    """Return the beginning of a log, after some intervals of origins."""
    found = struct.pack("<Q", len(state))
    for origin, first, last in state:
        found += uuid.UUID(origin).bytes
        found += struct.pack("<QQQ", 1, first, last + 1)
    description = event(15, b"\0" * 60 + b"\0" + bytes(4))
    return b"\xfebin" + description + event(35, found)


def gtid_event(origin, number, commit=None, kind=33):
    """Return the event that begins a transaction, at 1000 + number."""
    body = b"\0" + uuid.UUID(origin).bytes + struct.pack("<Q", number)
    body += b"\2" + bytes(16)
    time = 1000 + number if commit is None else commit
    return event(kind, body + struct.pack("<Q", time * 1_000_000)[:7])


def truncates(origin, first, last, database="db7"):
    """Return some transactions."""
    return b"".join(
        gtid_event(origin, number) + query(b"TRUNCATE a", database)
        for number in range(first, last + 1)
    )


def test_what_follows_the_backup_is_taken(tmp_path):
    one = archive(
        tmp_path,
        "a",
        begin() + truncates(A, 1, 4),
        begin((A, 1, 4)) + truncates(A, 5, 6),
    )
    for position, first in ((f"{A}:1-2", 3), (f"{A}:1-4", 5)):
        expected = [f"{A}:{number}" for number in range(first, 7)]
        assert replay([one], position) == ["a", *expected]
    found = replay([one], f"{A}:1-2", Moment(gtid=f"{A}:1-4"))
    assert found == ["a", f"{A}:3", f"{A}:4"]
    found = replay([one], f"{A}:1-2", Moment(time=1004.0))
    assert found == ["a", f"{A}:3"]


@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        # Another server, another place, a log that is missing.
        ([begin() + truncates(B, 1, 5)], "of another history"),
        ([begin((A, 1, 9))], f"begin after {A}:3-9"),
        (
            [begin() + truncates(A, 1, 3), begin((A, 1, 5)) + truncates(A, 6, 7)],
            f"lack {A}:4-5",
        ),
        ([begin((A, 1, 2)) + truncates(A, 5, 6)], f"lack {A}:3-4"),
        (
            [
                begin() + truncates(A, 1, 3),
                begin((A, 1, 2), (B, 1, 1)) + truncates(A, 4, 5),
            ],
            "is of another history",
        ),
        ([begin() + gtid_event(A, 1, kind=42)], "with a tag in it"),
        ([begin() + gtid_event(A, 1, kind=34)], "without a GTID"),
        (
            [begin((A, 1, 2)) + gtid_event(A, 3) + event(40, b"\2\1\0\1\1\4\0none")],
            "a transaction that cannot be decompressed",
        ),
        (
            [begin((A, 1, 2)) + gtid_event(A, 3) + event(40, b"\2\1")],
            "an event that is too short",
        ),
    ],
)
def test_logs_that_do_not_fit_are_refused(tmp_path, logs, reason):
    assert reason in replay([archive(tmp_path, "a", *logs)], f"{A}:1-2")


@pytest.mark.parametrize("is_compressed", [True, False])
def test_compressed_transactions_are_read(tmp_path, is_compressed):
    data = b"".join(
        [query(b"BEGIN"), query(b"TRUNCATE a" + b" " * 999), event(16, b"")]
    )
    payload = require_zstd().compress(data) if is_compressed else data
    # Numbers of more than 250 have a byte before them.
    fields = b"\2" + (b"\1\0" if is_compressed else b"\3\xfc\xff\0")
    for field, number in ((1, len(payload)), (3, len(data))):
        fields += struct.pack("<BBBH", field, 3, 252, number)
    one = archive(
        tmp_path,
        "a",
        begin((A, 1, 2))
        + gtid_event(A, 3)
        + event(40, fields + b"\0" + payload)
        + truncates(A, 4, 4),
    )
    assert replay([one], f"{A}:1-2") == ["a", f"{A}:3", f"{A}:4"]


def test_a_backup_whose_position_has_a_tag_is_refused(tmp_path):
    one = archive(tmp_path, "a", begin() + truncates(A, 1, 2))
    found = replay([one], f"{A}:1:tag:1-3")
    assert "GTIDs with tags are not supported" in found
    assert "restore with mysqlbinlog" in found


def test_a_standby_was_rebuilt_before_the_backup(tmp_path):
    """Its logs do not have what it was copied with."""
    one = archive(
        tmp_path,
        "a",
        begin() + truncates(A, 5, 6),
        begin((A, 1, 6)) + truncates(A, 7, 8),
    )
    assert replay([one], f"{A}:1-5") == ["a", f"{A}:6", f"{A}:7", f"{A}:8"]


def test_histories_that_part_are_not_mixed(tmp_path):
    lost = archive(tmp_path, "a", begin() + truncates(A, 1, 5))
    kept = archive(tmp_path, "b", begin() + truncates(A, 1, 3) + truncates(B, 1, 2))
    found = replay([lost, kept], f"{A}:1-2")
    assert f"{A}:4-5 and {B}:1-2" in found
    expected = ["b", f"{A}:3", f"{B}:1"]
    moment = Moment(gtid=f"{B}:1")
    assert replay([lost, kept], f"{A}:1-2", moment) == expected
    # A standby that was late has less, and contradicts nothing.
    late = archive(tmp_path, "c", begin() + truncates(A, 1, 4))
    found = replay([late, lost], f"{A}:1-2")
    assert found == ["a", f"{A}:3", f"{A}:4", f"{A}:5"]


def test_the_time_is_that_of_the_commit_at_the_origin(tmp_path):
    """A standby that was late has its own, later one, too."""
    late = gtid_event(A, 3, commit=4000)
    body = bytearray(late[19:])
    (when,) = struct.unpack("<Q", bytes(body[42:49]) + b"\0")
    body[42:49] = struct.pack("<Q", when | 1 << 55)[:7]
    body += struct.pack("<Q", 1003 * 1_000_000)[:7]
    log = begin((A, 1, 2)) + event(33, bytes(body)) + query(b"TRUNCATE a", "db7")
    assert replay([archive(tmp_path, "a", log)], f"{A}:1-2") == ["a", f"{A}:3"]
