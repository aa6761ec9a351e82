"""What a server says of its databases and of the tables in them.

Reading only: nothing here creates a database, a file or a directory, and no
row of a table is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy import Engine

__all__ = ["Catalogue"]


class Catalogue(Protocol):
    """The catalogue of a kind of server, ``backend.catalogue``."""

    def databases(self, engine: Engine) -> set[str]:
        """Return the names of the databases on the server of an engine.

        Those of the server itself are left out, and those that the user may
        not see cannot be told.  Where the server writes all names in small
        letters, so they are here.

        :param engine: of any virtual shard on the server.
        """
        ...

    def digests(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """Return a digest of the definition of every table, by database.

        Two tables of equal definitions have equal digests, whichever the
        database and the server, as long as the server is of one kind and
        version.

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
        """
        ...
