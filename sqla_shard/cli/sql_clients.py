"""The programs ``mariadb``, ``mysql`` and ``sqlite3``, on one database.

The client reads the password from a pipe, which is its option file, so that
the password is in no argument, environment variable or file.  The client reads
the user's ``~/.my.cnf`` first, for the prompt and the pager; the server, the
account and the certificates in the URL take precedence.

The client gets the TLS settings, ``charset`` and ``connect_timeout`` of the
URL; other settings are for the driver.  MariaDB clients verify either the
whole certificate or nothing: if the URL requires less than the former, they
are stricter than the driver.
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

# A pipe buffers 64 KiB; writing more before it is read blocks forever.
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
    """A program and its arguments.

    :param program: path of the program.
    :param arguments: arguments of the program, without secrets.
    :param options: content of the option file; None if the program has no
        option file.
    """

    program: str
    arguments: tuple[str, ...]
    options: str | None = None

    def __repr__(self) -> str:
        return f"Client({self.program!r}, {self.arguments!r})"

    def replace_process(self) -> NoReturn:
        """Replace this process with the program, on the same terminal.

        :raises OSError: if the program cannot be started.
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

    :param url: URL of the server, from the topology.
    :param database: name of the database.
    :param environ: values of the placeholders.
    :param statement: SQL to run; None for an interactive client.
    :param read_only: whether to make transactions read-only.
    :raises click.ClickException: if no client is installed, a file is not
        found, or the client does not support a setting.
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
        f"and Ubuntu: apt-get install {package}; --python does not need a "
        "client"
    )


def _sqlite(path: str, statement: str | None, read_only: bool) -> Client:
    if not Path(path).is_file():
        # Refuse it: sqlite3 would create an empty database.
        raise click.ClickException(
            f"{path} not found; the shard was not created yet, or the "
            "directory in the topology is relative to another one"
        )
    arguments = ["-readonly"] if read_only else []
    arguments += ["-cmd", ".timeout 30000", "-cmd", "PRAGMA foreign_keys=ON"]
    # Use an absolute path, and a space before the statement: an argument that
    # begins with '-', such as a comment, would be parsed as an option.
    arguments.append(str(Path(path).absolute()))
    if statement is not None:
        arguments.append(f" {statement}")
    return Client(
        program=_found("sqlite3", package="sqlite3"),
        arguments=tuple(arguments),
    )


def _arguments(url: URL, schema: str, statement: str | None) -> Iterator[str]:
    # Use TCP like the drivers; clients connect to "localhost" through a
    # socket.
    yield "--protocol=tcp"
    yield f"--host={url.host}"
    yield f"--port={url.port or 3306}"
    if statement is not None:
        yield f"--execute={statement}"
    yield f"--database={schema}"


def _options(
    settings: Iterable[tuple[str, str | None]], *, read_only: bool
) -> str:
    """Return the option file; the last value of a repeated option applies."""
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
            f"user, password and settings exceed {_MOST} bytes, the limit "
            "of the clients; shorten them"
        )
    return text


def _settings(
    url: URL, environ: Mapping[str, str], program: str
) -> Iterator[tuple[str, str | None]]:
    if url.username:
        yield "user", fill(url.username, environ)
    # Pass it even if empty; otherwise the client would use ~/.my.cnf or
    # MYSQL_PWD.
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
    """Yield the TLS options of the MariaDB or the MySQL client."""
    for name in _TLS_FILES:
        if name in given:
            yield name.replace("_", "-"), given[name]
    mode = _tls_mode(given)
    if mode is None:
        return
    if not _is_mariadb(program):
        yield "ssl-mode", mode
    else:
        # Set it for weaker modes as well: otherwise the client would connect
        # to a server without TLS unencrypted.
        yield "ssl-verify-server-cert", None


def _tls_mode(given: Mapping[str, str]) -> str | None:
    """Return MySQL's ``ssl-mode`` for a URL; None for the default."""
    checks = given.get(_TLS_CHECK, "").lower() not in _FALSE
    if "ssl_ca" in given or "ssl_capath" in given:
        return "VERIFY_IDENTITY" if checks else "VERIFY_CA"
    return "REQUIRED" if _TLS_CHECK in given and checks else None


def _is_mariadb(program: str) -> bool:
    """Return whether a client is MariaDB's, according to ``--version``."""
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False
    )
    return "MariaDB" in done.stdout


def _quoted(name: str, value: str) -> str:
    if "\0" in value:
        raise click.ClickException(
            f"the {name} contains a NUL character, which no client accepts"
        )
    return f'"{value.translate(_ESCAPES)}"'


def _pipe(text: str) -> int:
    """Return the read end of a pipe that contains the given string."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as file:
        file.write(text)
    os.set_inheritable(reading, True)
    return reading
