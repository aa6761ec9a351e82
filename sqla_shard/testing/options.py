"""Arguments of ``mariadbd`` for tests, each group with its reason."""

from __future__ import annotations

import resource
from pathlib import Path

__all__ = ["server_options", "storage_options"]

# Those of MySQL 8, which are stricter than MariaDB's own: what passes here
# passes there.
_SQL_MODE = ",".join(
    (
        "ONLY_FULL_GROUP_BY",
        "STRICT_TRANS_TABLES",
        "NO_ZERO_IN_DATE",
        "NO_ZERO_DATE",
        "ERROR_FOR_DIVISION_BY_ZERO",
        "NO_ENGINE_SUBSTITUTION",
    )
)


def storage_options(fast: bool) -> list[str]:
    """Return what shapes the files of a server.

    :param fast: little memory, and files that are copied quickly.
    """
    if not fast:
        return []
    return [
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=32M",
        "--aria-pagecache-buffer-size=8M",
        "--key-buffer-size=1M",
    ]


def _limits() -> tuple[int, int]:
    """Return how many files, and how many tables, a server may have open."""
    # mariadbd asks for two files for each table of its cache.  If that is
    # more than it may have, it gets no more than the soft limit: 1,024.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 65_535 if hard == resource.RLIM_INFINITY else min(hard, 65_535)
    return files, max(400, min(16_384, (files - 1_000) // 2))


def server_options(
    directory: Path,
    *,
    port: int,
    socket: Path,
    server_id: int,
    gtid_domain_id: int,
    fast: bool,
) -> list[str]:
    """Return the arguments of one server.

    :param directory: of the server alone; has ``data`` and ``tmp``.
    :param port: of 127.0.0.1.
    :param fast: whether a commit may be lost with the machine's power.
    """
    files, tables = _limits()
    # Each new, changed or dropped table waits for the disk several times.
    # "loose": a release that knows one of them no longer starts all the same.
    unsynced = ["--loose-innodb-flush-method=nosync", "--loose-debug-no-sync"]
    return [
        f"--datadir={directory / 'data'}",
        # A starting server removes all `#sql*` files of its tmpdir; those
        # of its neighbours too, if they share one.
        f"--tmpdir={directory / 'tmp'}",
        f"--socket={socket}",
        f"--pid-file={directory / 'tmp' / 'server.pid'}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        f"--server-id={server_id}",
        "--log-bin=binlog",
        "--binlog-format=ROW",
        "--log-slave-updates=1",
        "--relay-log=relay",
        f"--gtid-domain-id={gtid_domain_id}",
        "--gtid-strict-mode=1",
        f"--sql-mode={_SQL_MODE}",
        "--character-set-server=utf8mb4",
        "--default-time-zone=+00:00",
        "--performance-schema=OFF",
        "--max-connections=500",
        # Thousands of virtual shards with a few tables each are open at
        # once; the defaults (2,000 and 400) reopen them all the time.
        f"--open-files-limit={files}",
        f"--table-open-cache={tables}",
        "--table-open-cache-instances=1",
        f"--innodb-open-files={tables}",
        "--table-definition-cache=16384",
        # Only slow down the end and the start of a small server.
        "--innodb-buffer-pool-dump-at-shutdown=OFF",
        "--innodb-buffer-pool-load-at-startup=OFF",
        f"--innodb-flush-log-at-trx-commit={2 if fast else 1}",
        f"--sync-binlog={0 if fast else 1}",
        *(unsynced if fast else ()),
        *storage_options(fast),
    ]
