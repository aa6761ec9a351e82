"""What a server says of its databases and of the tables in them.

Reading only: nothing here creates a database, a file or a directory, and no
row of a table is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy import Engine

__all__ = ["DATABASE", "Catalogue", "hashed"]

DATABASE: Final = ""
"""In place of a table's name: the defaults of the database itself.  No
table can have it."""


class Catalogue(Protocol):
    """The catalogue of a kind of server, ``backend.catalogue``."""

    def databases(self, engine: Engine) -> set[str]:
        """Return the names of the databases on the server of an engine.

        Those of the server itself are left out, and those that the user may
        not see cannot be told.  Where the server does not care for the case
        of names, they are in small letters, and ``in`` does not care either.

        :param engine: of any virtual shard on the server.
        """
        ...

    def digests(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """Return a digest of the definition of every table, by database.

        Two tables of equal definitions have equal digests, whichever the
        database and the server, as long as the servers are of one version
        and the accounts may see the same.  :data:`DATABASE` stands for the
        defaults of the database.

        :param schemas: names of databases, not quoted; a database that is
            not there is left out of the result.
        """
        ...

    def definition(
        self, connection: Connection, schema: str, table: str
    ) -> str:
        """Return the definition of a table, for people to read.

        :param schema: name of its database, not quoted.
        :param table: its name, as :meth:`digests` gives it.
        :returns: lines in an order that depends on nothing else; empty where
            there is no such table.
        """
        ...


def hashed(parts: Iterable[str]) -> str:
    """Return one digest for several, whatever their order."""
    text = "\n".join(sorted(parts))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
