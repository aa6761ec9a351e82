"""Option files for the command-line clients of MySQL and MariaDB.

A client reads the password from a pipe, which is its option file, so that the
password is in no argument, environment variable or file.

The file has the TLS settings, ``charset`` and ``connect_timeout`` of a URL;
other settings are for the driver.  MariaDB clients verify either the whole
certificate or nothing: if the URL requires less than the former, they are
stricter than the driver.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy.engine import URL

from sqla_shard.topology import fill

# A pipe buffers 64 KiB; writing more before it is read blocks forever.
_MOST = 16_384
_ESCAPES = str.maketrans(
    {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
)
_TLS_FILES = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_key", "ssl_cipher")
_TLS_CHECK = "ssl_check_hostname"
_FALSE = frozenset(["0", "false"])
_OTHERS = {"charset": "default-character-set", "connect_timeout": "connect-timeout"}


def client_of(*names: str, is_mariadb: bool) -> str | None:
    """Return the path of a client of a kind of server; None if there is none.

    :param names: names of the program; MariaDB installs its clients under
        those of MySQL, too.
    :param is_mariadb: whether the server is MariaDB.
    """
    for name in names:
        path = shutil.which(name)
        if path is not None and is_mariadb_client(path) is is_mariadb:
            return path
    return None


def address_arguments(url: URL) -> tuple[str, ...]:
    """Return the arguments with the address of a server."""
    # Use TCP like the drivers; clients connect to "localhost" through a
    # socket.
    return ("--protocol=tcp", f"--host={url.host}", f"--port={url.port or 3306}")


def client_options(
    url: URL,
    environ: Mapping[str, str],
    program: str,
    *,
    first: Sequence[str] = (),
    last: Sequence[str] = (),
    has_texts: bool = True,
) -> str:
    """Return the content of an option file.

    :param url: URL of the server, with the account.
    :param environ: values of the placeholders in the URL.
    :param program: path of the client.
    :param first: lines before; the last value of a repeated option applies.
    :param last: lines after.
    :param has_texts: whether the client has a character set and a timeout;
        ``mariadb-binlog`` has none, and refuses options that it does not know.
    :raises ValueError: if it is too long, or contains a NUL character.
    """
    lines = [*first, "[client]"]
    lines += (
        name if value is None else f"{name}={_quoted(name, value)}"
        for name, value in _settings(url, environ, program, has_texts=has_texts)
    )
    text = "\n".join([*lines, *last]) + "\n"
    if len(text.encode()) > _MOST:
        raise ValueError(
            f"user, password and settings exceed {_MOST} bytes, the limit "
            "of the clients; shorten them"
        )
    return text


def pipe_with(text: str) -> int:
    """Return the read end of a pipe that contains the given string."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as file:
        file.write(text)
    os.set_inheritable(reading, True)
    return reading


def _settings(
    url: URL, environ: Mapping[str, str], program: str, *, has_texts: bool
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
    if has_texts:
        yield "default-character-set", "utf8mb4"
        for name, option in _OTHERS.items():
            if name in given:
                yield option, given[name]
    yield from _tls(given, program)


def _tls(given: Mapping[str, str], program: str) -> Iterator[tuple[str, str | None]]:
    """Yield the TLS options of the MariaDB or the MySQL client."""
    for name in _TLS_FILES:
        if name in given:
            yield name.replace("_", "-"), given[name]
    mode = _tls_mode(given)
    if mode is None:
        return
    if not is_mariadb_client(program):
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


def is_mariadb_client(program: str) -> bool:
    """Return whether a client is MariaDB's, according to ``--help``.

    ``mariadb-binlog --version`` does not name MariaDB.
    """
    done = subprocess.run(
        [program, "--help"], capture_output=True, text=True, check=False
    )
    return "MariaDB" in done.stdout


def _quoted(name: str, value: str) -> str:
    if "\0" in value:
        raise ValueError(
            f"the {name} contains a NUL character, which no client accepts"
        )
    return f'"{value.translate(_ESCAPES)}"'
