"""The programs ``mariadb``, ``mysql`` and ``sqlite3``, on one database.

The client reads the password from a pipe, which is its option file, so that
the password is in no argument, environment variable or file.  The client reads
the user's ``~/.my.cnf`` first, for the prompt and the pager; the server, the
account and the certificates in the URL take precedence.

See :mod:`sqla_shard.dialects.client_options` for the settings of the URL.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click
from sqlalchemy import make_url
from sqlalchemy.engine import URL

from sqla_shard.dialects import backend_for
from sqla_shard.dialects.client_options import (
    address_arguments,
    client_options,
    pipe_with,
)

__all__ = ["ClientProgram", "client_for"]


@dataclass(frozen=True, kw_only=True)
class ClientProgram:
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
            arguments.append(f"--defaults-file=/dev/fd/{pipe_with(self.options)}")
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
) -> ClientProgram:
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
    return ClientProgram(
        program=program,
        arguments=tuple(_arguments(parsed, schema, statement)),
        options=_options(parsed, environ, program, read_only=read_only),
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


def _sqlite(path: str, statement: str | None, read_only: bool) -> ClientProgram:
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
    return ClientProgram(
        program=_found("sqlite3", package="sqlite3"), arguments=tuple(arguments)
    )


def _arguments(url: URL, schema: str, statement: str | None) -> Iterator[str]:
    yield from address_arguments(url)
    if statement is not None:
        yield f"--execute={statement}"
    yield f"--database={schema}"


def _options(
    url: URL, environ: Mapping[str, str], program: str, *, read_only: bool
) -> str:
    """Return the option file."""
    own = Path.home() / ".my.cnf"
    last = ("[mysql]", 'init-command="SET SESSION TRANSACTION READ ONLY"')
    try:
        return client_options(
            url,
            environ,
            program,
            first=(f"!include {own}",) if own.is_file() else (),
            last=last if read_only else (),
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
