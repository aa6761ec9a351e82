"""Replays of binary logs, from logs that are written here."""

from __future__ import annotations

import hashlib
import struct
import zlib

import pytest

from sqla_shard.fleet.binlog_archive import BinlogArchive, LogFile
from sqla_shard.fleet.binlog_events import Statement
from sqla_shard.fleet.binlog_statements import NotReplayableError, rewritten
from sqla_shard.fleet.replay import best_replay, MariaDBReplay, Moment
from sqla_shard.fleet.storage import MANIFEST, Storage

LATER = Moment(time=1500.0)


def event(kind, body, time=1, server=1):
    """Return an event without a checksum."""
    size = 19 + len(body)
    return struct.pack("<IBIIIH", time, kind, server, size, 0, 0) + body


def begin(*state):
    """Return the beginning of a log, after some GTIDs."""
    found = struct.pack("<I", len(state))
    for gtid in state:
        domain, server, number = gtid
        found += struct.pack("<IIQ", domain, server, number)
    return (b"\xfebin" + event(15, b"\0" * 60 + b"\0" + bytes(4))) + event(163, found)


def gtid_event(domain, server, number, flags=1, more=bytes(6)):
    """Return the event that begins a transaction, at 1000 + number."""
    body = struct.pack("<QIB", number, domain, flags) + more
    return event(162, body, 1000 + number, server)


def query(sql, database="", variables=b"", kind=2):
    """Return a statement."""
    return event(
        kind,
        struct.pack("<IIBHH", 1, 0, len(database), 0, len(variables))
        + variables
        + database.encode()
        + b"\0"
        + sql,
        1234,
    )


def truncates(domain, server, first, last, database="db7"):
    """Return some transactions."""
    return b"".join(
        gtid_event(domain, server, number) + query(b"TRUNCATE a", database)
        for number in range(first, last + 1)
    )


def archive(folder, name, *logs, closed=2000.0):
    """Write logs of a server."""
    storage = Storage(folder)
    place = folder / storage.log_folder(name)
    place.mkdir(parents=True)
    files = []
    for index, data in enumerate(logs):
        path = place / f"binlog.{index:06}"
        path.write_bytes(data)
        files.append(
            LogFile(
                name=path.name,
                size=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
                closed=closed,
            )
        )
    return BinlogArchive(
        files=storage.files,
        folder=storage.log_folder(name),
        address=name,
        server_id=1,
        logs=tuple(files),
    )


def replay(archives, position, moment=LATER, kind=MariaDBReplay):
    """Return the server, and the names of the transactions."""
    files = archives[0].files
    for one in archives:
        one.write()
    found, problems = best_replay(
        kind, Storage(str(files)), position, "db7", "new", moment
    )
    for one in archives:
        files.remove(f"{one.folder}/{MANIFEST}")
    if found is None:
        return " ".join(map(str, problems))
    reader = found._reader()
    return [found.address, *(one.name for one in found._transactions(reader))]


def test_the_logs_of_another_pair_are_not_taken(tmp_path):
    # With a domain of its own, and in the same domain.
    others = [
        archive(tmp_path, "a", begin() + truncates(2, 9, 1, 5, "db900")),
        archive(tmp_path, "b", begin() + truncates(1, 9, 1, 5, "db900")),
    ]
    mine = archive(tmp_path, "c", begin() + truncates(1, 1, 1, 5))
    expected = ["c", "1-1-3", "1-1-4", "1-1-5"]
    assert replay([*others, mine], "1-1-2") == expected
    found = replay(others, "1-1-2")
    assert found.count("do not contain 1-1-2") == 2


def test_logs_that_begin_later_are_not_taken_even_if_empty(tmp_path):
    one = archive(tmp_path, "a", begin((1, 1, 900)))
    assert "begin after 1-1-900" in replay([one], "1-1-2")


def test_logs_that_begin_at_the_backup_are_taken(tmp_path):
    one = archive(tmp_path, "a", begin((1, 1, 2)) + truncates(1, 1, 3, 3))
    assert replay([one], "1-1-2") == ["a", "1-1-3"]


def test_domains_that_ended_before_a_rebuild_need_not_be_logged(tmp_path):
    one = archive(tmp_path, "a", begin() + truncates(1, 1, 2, 4))
    assert replay([one], "0-7-4,1-1-3") == ["a", "1-1-4"]


def test_a_gtid_means_its_server(tmp_path):
    lost = archive(tmp_path, "a", begin() + truncates(1, 1, 1, 5))
    kept = archive(
        tmp_path, "b", begin() + truncates(1, 1, 1, 2) + truncates(1, 2, 3, 5)
    )
    found = replay([lost, kept], "1-1-2", Moment(gtid="1-2-4"))
    assert found == ["b", "1-2-3", "1-2-4"]
    assert "do not contain 1-9-2" in replay([lost], "1-1-2", Moment(gtid="1-9-2"))


def test_a_time_in_two_histories_is_refused(tmp_path):
    lost = archive(tmp_path, "a", begin() + truncates(1, 1, 1, 5))
    kept = archive(
        tmp_path, "b", begin() + truncates(1, 1, 1, 2) + truncates(1, 2, 3, 5)
    )
    found = replay([lost, kept], "1-1-2")
    assert "1-1-3 and 1-2-3" in found
    assert "--to-gtid" in found


def test_of_one_history_the_longest_is_taken(tmp_path):
    late = archive(tmp_path, "a", begin() + truncates(1, 1, 1, 3))
    full = archive(tmp_path, "b", begin() + truncates(1, 1, 1, 4))
    assert replay([late, full], "1-1-2") == ["b", "1-1-3", "1-1-4"]


@pytest.mark.parametrize(
    "sql", ["SET STATEMENT a=5 FOR TRUNCATE db7.b", "SET /*!STATEMENT*/ a"]
)
def test_prefixes_of_statements_are_not_harmless(sql):
    with pytest.raises(NotReplayableError):
        rewritten(Statement(sql.encode(), "db7", 0), "db7", "new")


def test_lost_changes_are_refused(tmp_path):
    incident = event(26, b"\1\0\0", 1002)
    one = archive(tmp_path, "a", begin() + truncates(1, 1, 1, 2) + incident)
    assert "lost changes" in replay([one], "1-1-1")


def test_unknown_events_of_a_transaction_are_refused(tmp_path):
    commit = event(16, bytes(8))
    logs = [
        begin((1, 1, 1)) + gtid_event(1, 1, 2, 0) + event(kind, b"") + commit
        for kind in (18, 160)
    ]
    assert "unknown kind (18)" in replay([archive(tmp_path, "a", logs[0])], "1-1-1")
    assert replay([archive(tmp_path, "b", logs[1])], "1-1-1") == ["b", "1-1-2"]


def rows_of(database):
    """Return an event that names a table, and one of its rows."""
    named = b"\7\0\0\0\0\0\0\0" + bytes([len(database)]) + database.encode()
    return event(19, named + b"\0\1a\0") + event(23, b"\7\0\0\0\0\0\1\0\1")


@pytest.mark.parametrize(("database", "is_good"), [("db900", True), ("db7", False)])
def test_only_own_xa_transactions_are_refused(tmp_path, database, is_good):
    xid = struct.pack("<IBB", 1, 1, 0) + b"a"
    prepared = gtid_event(1, 1, 2, 64, xid) + rows_of(database) + event(38, bytes(9))
    committed = gtid_event(1, 1, 3, 128 | 1, xid) + query(b"XA COMMIT X'61'")
    one = archive(tmp_path, "a", begin((1, 1, 1)) + prepared + committed)
    found = replay([one], "1-1-1")
    assert found == ["a", "1-1-2", "1-1-3"] if is_good else "XA" in found
    # It is not known what was prepared before.
    two = archive(tmp_path, "b", begin((1, 1, 2)) + committed)
    assert "XA" in replay([two], "1-1-2")


def test_statements_have_their_mode_time_and_zone(tmp_path):
    variables = (
        b"\0\0\0\0\0"
        b"\1"
        + struct.pack("<Q", 8)
        + b"\6\3std"
        + b"\4"
        + bytes(6)
        + b"\5\6+02:00"
        + b"\x80\1\2\3"
    )
    sql = b"ALTER TABLE db7.a ADD b TIMESTAMP DEFAULT NOW()"
    packed = b"\x81" + bytes([len(sql)]) + zlib.compress(sql)
    log = b"".join(
        gtid_event(1, 1, number) + query(text, "x", variables, kind)
        for number, text, kind in ((2, sql, 2), (3, packed, 165))
    )
    one = archive(tmp_path, "a", begin((1, 1, 1)) + log)
    one.write()
    storage = Storage(tmp_path)
    found, _ = best_replay(MariaDBReplay, storage, "1-1-1", "db7", "new", LATER)
    parts = [
        part
        for transaction in found._transactions(found._reader())
        for part in transaction.parts
    ]
    assert parts == [Statement(sql, "x", 8, 1234, "+02:00")] * 2

    class Session:
        """Records the statements that it would run."""

        def __init__(self):
            self.run_statements = []

        def run(self, sql, *parameters):
            """Keep a statement with parameters."""
            self.run_statements.append(sql.replace("%s", "%r") % parameters)

        def run_verbatim(self, sql):
            """Keep a statement."""
            self.run_statements.append(sql)

    own, other = Session(), Session()
    assert len(list(found.apply(own, other))) == 2
    assert other.run_statements[:2] == [
        "SET SESSION sql_mode = 8, timestamp = 1234, time_zone = '+02:00'",
        "ALTER TABLE `new`.a ADD b TIMESTAMP DEFAULT NOW()",
    ]
