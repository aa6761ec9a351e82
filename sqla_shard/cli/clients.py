"""The programs ``mariadb``, ``mysql`` and ``sqlite3``, on one database.

The password goes to the client through a pipe that it reads as its option
file: it is in no argument, no environment variable and no file, and there is
nothing to remove afterwards.  The user's own ``~/.my.cnf`` is read first, so
that prompts and pagers stay; where it names a server, an account or a
certificate, what the URL says wins.

Of a URL's settings the client gets those of TLS, ``charset`` and
``connect_timeout``; others concern the driver.  The clients of MariaDB check
all of a certificate or none of it, so where the URL asks for a part of that
they are stricter than the driver.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click
from sqlalchemy import make_url
from sqlalchemy.engine import URL

from sqla_shard.dialects import backend_for
from sqla_shard.topology import fill

__all__ = ["Client", "client_for"]

# A pipe takes 64 KiB before anybody reads it; more would wait forever.
_MOST = 16_384
_ESCAPES = str.maketrans(
    {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
)
_TLS_FILES = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_key", "ssl_cipher")
_TLS_CHECK = "ssl_check_hostname"
_FALSE = frozenset(["0", "false"])
_OTHERS = {
    "charset": "default-character-set",
    "connect_timeout": "connect-timeout",
}


@dataclass(frozen=True, kw_only=True)
class Client:
    """A program that is ready to run.

    :param program: its path.
    :param arguments: what it is started with; no secret is among them.
    :param options: text of the option file that it reads first; None for a
        program that reads none.
    """

    program: str
    arguments: tuple[str, ...]
    options: str | None = None

    def __repr__(self) -> str:
        return f"Client({self.program!r}, {self.arguments!r})"

    def replace_process(self) -> NoReturn:
        """Become the program: it has our terminal, and its status is ours.

        :raises OSError: when it cannot be started.
        """
        arguments = [self.program]
        if self.options is not None:
            arguments.append(f"--defaults-file=/dev/fd/{_pipe(self.options)}")
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(self.program, [*arguments, *self.arguments])  # noqa: S606  # no shell is wanted


def client_for(
    url: str,
    database: str,
    *,
    environ: Mapping[str, str],
    statement: str | None = None,
    read_only: bool = False,
) -> Client:
    """Return the client for a database of a server.

    :param url: of the server, as the topology has it.
    :param database: name of the database.
    :param environ: values of the placeholders.
    :param statement: SQL to run, in place of a session with the user.
    :param read_only: whether writing is refused.
    :raises click.ClickException: when no client is installed, a file is not
        there, or the client has no such setting.
    """
    parsed = make_url(url)
    backend = backend_for(parsed.drivername, driver="pymysql")
    parsed, schema = backend.locate(parsed, database)
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(str(parsed.database), statement, read_only)
    program = _found("mariadb", "mysql", package="mariadb-client")
    return Client(
        program=program,
        arguments=tuple(_arguments(parsed, schema, statement)),
        options=_options(
            _settings(parsed, environ, program), read_only=read_only
        ),
    )


def _found(*names: str, package: str) -> str:
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise click.ClickException(
        f"{' or '.join(names)} is not installed, or not in PATH; on Debian "
        f"and Ubuntu that takes: apt-get install {package}; --python needs "
        "none"
    )


def _sqlite(path: str, statement: str | None, read_only: bool) -> Client:
    if not Path(path).is_file():
        # sqlite3 would make an empty one.
        raise click.ClickException(
            f"there is no file {path}; the shard was not created yet, or "
            "the directory in the topology is relative to another one"
        )
    arguments = ["-readonly"] if read_only else []
    arguments += ["-cmd", ".timeout 30000", "-cmd", "PRAGMA foreign_keys=ON"]
    # An argument that begins with '-' would be taken for an option, and a
    # comment begins so.
    arguments.append(str(Path(path).absolute()))
    if statement is not None:
        arguments.append(f" {statement}")
    return Client(
        program=_found("sqlite3", package="sqlite3"),
        arguments=tuple(arguments),
    )


def _arguments(url: URL, schema: str, statement: str | None) -> Iterator[str]:
    # As the drivers do: to the client, "localhost" would be a socket.
    yield "--protocol=tcp"
    yield f"--host={url.host}"
    yield f"--port={url.port or 3306}"
    if statement is not None:
        yield f"--execute={statement}"
    yield f"--database={schema}"


def _options(
    settings: Iterable[tuple[str, str | None]], *, read_only: bool
) -> str:
    """Return the option file; in it, the last of two equal options wins."""
    lines = []
    own = Path.home() / ".my.cnf"
    if own.is_file():
        lines.append(f"!include {own}")
    lines.append("[client]")
    lines += (
        name if value is None else f"{name}={_quoted(name, value)}"
        for name, value in settings
    )
    if read_only:
        lines.append("[mysql]")
        lines.append('init-command="SET SESSION TRANSACTION READ ONLY"')
    text = "\n".join(lines) + "\n"
    if len(text.encode()) > _MOST:
        raise click.ClickException(
            f"user, password and settings have more than {_MOST} bytes, "
            "which no client takes; shorten them"
        )
    return text


def _settings(
    url: URL, environ: Mapping[str, str], program: str
) -> Iterator[tuple[str, str | None]]:
    if url.username:
        yield "user", fill(url.username, environ)
    # Also an empty one: else ~/.my.cnf or MYSQL_PWD would say another.
    yield "password", fill(str(url.password or ""), environ)
    given = {
        name: value if isinstance(value, str) else value[-1]
        for name, value in url.query.items()
    }
    yield "default-character-set", "utf8mb4"
    for name, option in _OTHERS.items():
        if name in given:
            yield option, given[name]
    yield from _tls(given, program)


def _tls(
    given: Mapping[str, str], program: str
) -> Iterator[tuple[str, str | None]]:
    """Yield the options for TLS, as MariaDB or as MySQL spells them."""
    for name in _TLS_FILES:
        if name in given:
            yield name.replace("_", "-"), given[name]
    mode = _tls_mode(given)
    if mode is None:
        return
    if not _is_mariadb(program):
        yield "ssl-mode", mode
    else:
        # Whatever of it is to be checked: without that they would go on in
        # the clear where a server offers no TLS.
        yield "ssl-verify-server-cert", None


def _tls_mode(given: Mapping[str, str]) -> str | None:
    """Return what is asked for, in MySQL's words; None for no matter."""
    checks = given.get(_TLS_CHECK, "").lower() not in _FALSE
    if "ssl_ca" in given or "ssl_capath" in given:
        return "VERIFY_IDENTITY" if checks else "VERIFY_CA"
    return "REQUIRED" if _TLS_CHECK in given and checks else None


def _is_mariadb(program: str) -> bool:
    """Ask a client whose it is: neither knows the other's options."""
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False
    )
    return "MariaDB" in done.stdout


def _quoted(name: str, value: str) -> str:
    if "\0" in value:
        raise click.ClickException(
            f"the {name} has a NUL character, which no client takes"
        )
    return f'"{value.translate(_ESCAPES)}"'


def _pipe(text: str) -> int:
    """Return the end of a pipe from which a program can read a text."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as file:
        file.write(text)
    os.set_inheritable(reading, True)
    return reading
