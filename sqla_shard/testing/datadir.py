"""Data directories: made once for each process, then copied.

``mariadb-install-db`` takes about a second, a copy of its result 0.05 s.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqla_shard import exc
from sqla_shard.testing._processes import guard
from sqla_shard.testing._processes import tail
from sqla_shard.testing.binaries import Binaries
from sqla_shard.testing.binaries import find_binaries
from sqla_shard.testing.binaries import MISSING

__all__ = ["Account", "copy_data", "made", "make_directory", "require"]

_made: dict[tuple[object, ...], Path] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Account:
    """The system's account that a server runs under.

    :ivar name: its name; None for an account without one.
    :ivar change: whether we are root and it is not.
    """

    name: str | None
    change: bool

    @classmethod
    def for_directory(cls, parent: Path) -> Account:
        """Choose: ``mysql`` for root, where possible, else ourselves.

        :param parent: where the server's directory will be made.
        """
        if os.geteuid() == 0:
            # Below a private directory (pytest's, for one) another account
            # cannot reach its own files.
            reachable = all(
                folder.stat().st_mode & 0o001
                for folder in (parent, *parent.parents)
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
        """``--user``, which mariadbd wants of root and of nobody else."""
        return [f"--user={self.name}"] if os.geteuid() == 0 else []

    def own(self, path: Path) -> None:
        """Give a file or directory, not its contents, to this account."""
        if self.change:
            shutil.chown(path, self.name, self._group)

    @property
    def _group(self) -> int:
        return pwd.getpwnam(str(self.name)).pw_gid

    def run(
        self, command: list[str], *, cwd: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run a program under this account; its output is kept."""
        return subprocess.run(
            command,
            cwd=cwd,
            # Setting the account here rather than with --user: given that,
            # mariadb-install-db changes files of the installed MariaDB.
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
    """Return the name of the account that runs us; None if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def require() -> Binaries:
    """Return the programs of MariaDB.

    :raises sqla_shard.exc.ServerProcessError: if they are not installed.
    """
    found = find_binaries()
    if found is None:
        raise exc.ServerProcessError(MISSING, log="")
    return found


def make_directory(parent: Path, account: Account) -> Path:
    """Make a new directory of an account, closed to all others."""
    # Short: a socket in it may have a path of no more than 107 bytes.
    made = Path(tempfile.mkdtemp(prefix="sqlashard-", dir=parent))
    account.own(made)
    return made


def made(options: Sequence[str]) -> Path:
    """Return a data directory to copy.

    It is made for the first server that wants one, and removed when the
    process ends.

    :param options: of the server, as far as they shape its files.
    :raises sqla_shard.exc.ServerProcessError: if it cannot be made.
    """
    # A forked child does not have its parent's, which may end before it.
    key = (os.getpid(), require(), *options)
    with _lock:  # the servers of a fleet ask side by side
        if key not in _made or not _made[key].exists():
            parent = Path(tempfile.gettempdir()).resolve()
            account = Account.for_directory(parent)
            base = make_directory(parent, account)
            # The guard first, which is still there at exit.
            guard.add(0, base)
            atexit.register(_remove, base, os.getpid())
            _install_data(base / "data", account, options)
            _made[key] = base / "data"
        return _made[key]


def _remove(base: Path, owner: int) -> None:
    if owner == os.getpid():
        shutil.rmtree(base, ignore_errors=True)
        guard.remove(base)


def _install_data(
    directory: Path, account: Account, options: Sequence[str]
) -> None:
    """Make a data directory with nothing but the system's tables.

    Its only user is root, who logs in over the socket without a password
    under the name of the account that runs us.

    :param directory: must not exist.
    :param options: of the server, as far as they shape its files.
    :raises sqla_shard.exc.ServerProcessError: if that fails.
    """
    binaries = require()
    name = system_user()
    if name is None:
        raise exc.ServerProcessError(
            f"user id {os.geteuid()} has no name on this machine, so that "
            "MariaDB could not tell who connects. Add it to /etc/passwd",
            log="",
        )
    done = account.run(
        [
            binaries.install,
            *binaries.options,
            "--force",  # no name service needed
            "--skip-test-db",  # nor its users without a name
            "--skip-name-resolve",
            "--auth-root-authentication-method=socket",
            f"--auth-root-socket-user={name}",
            f"--datadir={directory}",
            f"--tmpdir={directory.parent}",
            "--skip-log-bin",
            "--innodb-flush-method=nosync",
            "--sync-frm=0",
            *options,
        ],
        cwd=directory.parent,
    )
    if done.returncode:
        raise exc.ServerProcessError(
            f"mariadb-install-db ended with status {done.returncode}",
            log=done.stdout or tail(directory / "error.log"),
        )


def copy_data(template: Path, directory: Path, account: Account) -> None:
    """Copy a data directory that no server is using.

    :param template: made by :func:`made`, never started.
    :param directory: must not exist.
    """
    shutil.copytree(template, directory)
    for folder, _, names in os.walk(directory):
        account.own(Path(folder))
        for name in names:
            account.own(Path(folder, name))
