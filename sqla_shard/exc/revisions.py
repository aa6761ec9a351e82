"""Revisions of the schema: what they may not touch, and their files."""

from __future__ import annotations

from sqla_shard.exc.schema import SchemaError

__all__ = ["ReservedNameError", "SchemaSetupError"]


class ReservedNameError(SchemaError):
    """Raised when a table has a name that belongs to the package.

    :ivar table: its name.
    """

    def __init__(self, *, table: str) -> None:
        super().__init__(
            f"a table cannot be called {table!r}: alembic_version, and what "
            "begins with sqla_shard_, are tables in which upgrades are "
            "noted, so a revision never shows them. Give it another name"
        )
        self.table = table


class SchemaSetupError(SchemaError):
    """Raised when the files for revisions cannot be written.

    :ivar value: what is wrong: a path, the name of a keyspace, or what was
        given for the models.
    """

    def __init__(self, message: str, *, value: str) -> None:
        super().__init__(message)
        self.value = value
