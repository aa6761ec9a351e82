"""The setup of database servers: accounts, options and data directories.

A data directory is created once and kept in the cache of the user, below
``$XDG_CACHE_HOME`` or ``~/.cache``; each server gets a copy.  To create one
takes a second or three, a copy 0.05 s.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import resource
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pymysql.cursors import Cursor

from sqla_shard.exc import ServerProcessError
from sqla_shard.testing.local_server import guard
from sqla_shard.testing.programs import DatabasePrograms

PREFIXES = ("db", "main", "lookup")
"""Default beginnings of database names."""

_SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")


def random_password() -> str:
    """Return ``SQLA_SHARD_TEST_PASSWORD`` if set, else a random password."""
    return os.environ.get("SQLA_SHARD_TEST_PASSWORD") or (secrets.token_urlsafe(18))


def check_prefixes(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Return the prefixes, if they are valid.

    :raises ValueError: if there is no prefix, or one has other characters, or
        matches a system database.
    """
    if not prefixes:
        raise ValueError("prefixes must have at least one item")
    for prefix in prefixes:
        if not re.fullmatch(r"[A-Za-z0-9_$-]+", prefix):
            raise ValueError(f"prefix {prefix!r} must be letters, digits, _, $ or -")
        for name in _SYSTEM_DATABASES:
            if name.startswith(prefix.lower()):
                raise ValueError(
                    f"prefix {prefix!r} matches the system database {name!r}"
                )
    return tuple(prefixes)


def create_user(
    cursor: Cursor, account: str, *, password: str, prefixes: Sequence[str]
) -> None:
    """Create a user with all privileges on databases with the given prefixes.

    :param cursor: cursor of a connection of root.
    :param account: user and host, quoted.
    :param prefixes: beginnings of the names of its databases.
    """
    cursor.execute(f"CREATE USER {account} IDENTIFIED BY %s", (password,))
    for prefix in prefixes:
        # An unescaped underscore would match any character.
        pattern = re.sub(r"([\\_%])", r"\\\1", prefix) + "%"
        cursor.execute(f"GRANT ALL PRIVILEGES ON `{pattern}`.* TO {account}")


def _limits() -> tuple[int, int]:
    """Return the numbers of files and tables that a server may open."""
    # mariadbd requests two files for each table of its cache.  Above the hard
    # limit it gets the soft limit only: 1,024.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 65_535 if hard == resource.RLIM_INFINITY else min(hard, 65_535)
    return files, max(400, min(16_384, (files - 1_000) // 2))


def server_options(
    directory: Path, *, port: int, socket: Path, server_id: int, fast: bool
) -> list[str]:
    """Return the arguments that servers of all kinds have.

    :param directory: directory of this server; contains ``data`` and ``tmp``.
    :param port: port on 127.0.0.1.
    :param fast: whether a power failure may lose commits.
    """
    files, tables = _limits()
    return [
        f"--datadir={directory / 'data'}",
        # A starting server removes all `#sql*` files of its tmpdir, even
        # those of other servers.
        f"--tmpdir={directory / 'tmp'}",
        f"--socket={socket}",
        f"--pid-file={directory / 'tmp' / 'server.pid'}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        f"--server-id={server_id}",
        "--log-bin=binlog",
        "--relay-log=relay",
        "--character-set-server=utf8mb4",
        "--default-time-zone=+00:00",
        "--performance-schema=OFF",
        "--max-connections=500",
        # For thousands of virtual shards with a few tables each; with the
        # defaults (2,000 and 400) tables would be reopened all the time.
        f"--open-files-limit={files}",
        f"--table-open-cache={tables}",
        "--table-open-cache-instances=1",
        f"--innodb-open-files={tables}",
        "--table-definition-cache=16384",
        # A small server starts and stops faster without these features.
        "--innodb-buffer-pool-dump-at-shutdown=OFF",
        "--innodb-buffer-pool-load-at-startup=OFF",
        f"--innodb-flush-log-at-trx-commit={2 if fast else 1}",
        f"--sync-binlog={0 if fast else 1}",
    ]


#: Seconds after which a data directory that no server was copied from is
#: removed: that of a former version, for example.
_KEPT_UNUSED = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system account of a server.

    :ivar name: name of the account; None if it has none.
    :ivar change: whether this process runs as root and the server does not.
    """

    name: str | None
    change: bool

    @classmethod
    def for_directory(cls, parent: Path) -> Account:
        """Return ``mysql`` for root, if possible, else the current account.

        :param parent: parent of the server's directory.
        """
        if os.geteuid() == 0:
            # In a private directory, such as that of pytest, another account
            # cannot read its own files.
            reachable = all(
                folder.stat().st_mode & 0o001 for folder in (parent, *parent.parents)
            )
            try:
                pwd.getpwnam("mysql")
            except KeyError:
                reachable = False
            if reachable:
                return cls("mysql", change=True)
        return cls(system_user(), change=False)

    @property
    def server_options(self) -> list[str]:
        """``--user``, which a server requires of root only."""
        return [f"--user={self.name}"] if os.geteuid() == 0 else []

    def own(self, path: Path) -> None:
        """Change the owner of a file or directory, not of its contents."""
        if self.change:
            shutil.chown(path, self.name, self._group)

    @property
    def _group(self) -> int:
        return pwd.getpwnam(str(self.name)).pw_gid

    def run(self, command: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program under this account, and capture its output."""
        return subprocess.run(
            command,
            cwd=cwd,
            # Not with --user: mariadb-install-db would change files of the
            # installed MariaDB.
            user=self.name if self.change else None,
            group=self._group if self.change else None,
            extra_groups=[] if self.change else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def system_user() -> str | None:
    """Return the name of the account of this process; None if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def make_directory(parent: Path, account: Account) -> Path:
    """Create a directory of an account, without access for other users."""
    # Short: the path of a socket in it is limited to 107 bytes.
    made = Path(tempfile.mkdtemp(prefix="sqlashard-", dir=parent))
    account.own(made)
    return made


def data_template(
    programs: DatabasePrograms,
    options: Sequence[str],
    install: Callable[[Path, Account], None],
) -> Path:
    """Return a data directory to copy, which is created if there is none.

    :param programs: the programs whose server uses the copies.
    :param options: options that determine the files.
    :param install: called to create a data directory, with its path, which
        does not exist, and the account that is to own it.
    :raises sqla_shard.exc.ServerProcessError: if it cannot be created.
    """
    server = os.stat(programs.server)
    key = repr((programs, list(options), server.st_size, server.st_mtime_ns))
    cache = _cache()
    template = cache / sha256(key.encode()).hexdigest()[:16]
    # Servers of a fleet, and processes of pytest, start at the same time.
    with open(f"{template}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if template.exists():
            os.utime(template)
            return template
        _remove_unused(cache)
        # Not in the cache: the account of the server cannot reach it.
        parent = Path(tempfile.gettempdir()).resolve()
        account = Account.for_directory(parent)
        base = make_directory(parent, account)
        guard.add(0, base)
        try:
            install(base / "data", account)
            part = Path(tempfile.mkdtemp(dir=cache))
            shutil.copytree(base / "data", part, dirs_exist_ok=True)
            part.rename(template)
        finally:
            shutil.rmtree(base, ignore_errors=True)
            guard.remove(base)
    return template


def _cache() -> Path:
    """Return the directory with data directories to copy.

    :raises sqla_shard.exc.ServerProcessError: if others could write to it.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        cache = Path(home, "sqla-shard", "servers").expanduser()
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        cache = Path(tempfile.gettempdir(), f"sqla-shard-{os.geteuid()}")
        cache.mkdir(mode=0o700, exist_ok=True)
    found = cache.stat()
    # Their programs would run in the servers of this user.
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ServerProcessError(
            f"{cache} must belong to this user, without access for others. "
            "Remove it, or set XDG_CACHE_HOME",
            log="",
        )
    return cache


def _remove_unused(cache: Path) -> None:
    """Remove data directories that no server was copied from for long."""
    for path in cache.iterdir():
        if path.is_dir() and path.stat().st_mtime < time.time() - _KEPT_UNUSED:
            shutil.rmtree(path, ignore_errors=True)


def copy_data(template: Path, directory: Path, account: Account) -> None:
    """Copy a data directory that no server uses.

    :param template: directory that :func:`data_template` has returned.
    :param directory: must not exist.
    """
    shutil.copytree(template, directory)
    for folder, _, names in os.walk(directory):
        account.own(Path(folder))
        for name in names:
            account.own(Path(folder, name))
