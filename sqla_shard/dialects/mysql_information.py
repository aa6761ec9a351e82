"""What is read of information_schema, as statements that hash it.

MariaDB has three ways to fill a table of it, which EXPLAIN shows: from a list
of files, from the definition alone (``Open_frm_only``), or by opening the
table.  One column can make the difference; tests hold these to the second
way, but for CHECKs and foreign keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam
from sqlalchemy import text
from sqlalchemy import TextClause

__all__ = [
    "ARE_VIEWS",
    "CHECKS",
    "COLUMNS",
    "DATABASES",
    "REFERENCES",
    "REFERENCING",
    "SEEN",
    "TABLES",
    "VIEWS",
    "Part",
]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One table of information_schema, and what is read of it.

    :ivar schema: its column with the name of the database.
    :ivar table: its column with the name of the table.
    :ivar columns: expressions that the digest covers.
    """

    source: str
    schema: str = "table_schema"
    table: str = "table_name"
    columns: tuple[str, ...]
    more: str = ""

    def statement(self, by_table: bool) -> TextClause:
        """Return the statement.

        :param by_table: whether it gives a row for each table; otherwise
            for each database, with an empty name of the table.
        """
        # QUOTE() tells NULL from a text, and where one value ends.
        values = ", ".join(
            f"QUOTE({column})" for column in (self.table, *self.columns)
        )
        # By their own collation pins and Pins would be one.
        schema, table = (
            f"CONVERT({column} USING utf8mb4) COLLATE utf8mb4_bin"
            for column in (self.schema, self.table if by_table else "''")
        )
        # One number for all rows whatever their order.  GROUP_CONCAT would
        # cut off what is too long for it.
        statement = text(
            f"SELECT {schema} AS s, {table} AS t, "  # noqa: S608 - constants
            f"BIT_XOR(CAST(CONV(LEFT(MD5(CONCAT_WS(',', {values})), 16), "
            f"16, 10) AS UNSIGNED)) AS d FROM {self.source} "
            f"WHERE {self.schema} IN :schemas {self.more} GROUP BY s, t"
        )
        for name in ("schemas", "tables"):
            if f":{name}" in statement.text:
                statement = statement.bindparams(
                    bindparam(name, expanding=True)
                )
        return statement


def _local(column: str, schema: str = "table_schema") -> str:
    """Return SQL for a text without the name of its own database."""
    return f"REPLACE({column}, CONCAT('`', {schema}, '`.'), '')"


def _own(column: str, schema: str) -> str:
    """Return SQL for the name of another database than one's own."""
    return f"NULLIF({column}, {schema})"


_I_S = "information_schema."
TABLES = Part(
    source=_I_S + "tables",
    columns=("table_type", "engine", "table_collation", "table_comment"),
)
DATABASES = Part(
    source=_I_S + "schemata",
    schema="schema_name",
    table="''",
    columns=("default_character_set_name", "default_collation_name"),
)
COLUMNS = Part(
    source=_I_S + "columns",
    columns=(
        "column_name",
        "ordinal_position",
        _local("column_default"),
        "is_nullable",
        "column_type",
        "character_set_name",
        "collation_name",
        "extra",
        "generation_expression",
        "column_comment",
    ),
)
_INDEX = (
    "index_name",
    "non_unique",
    "seq_in_index",
    "column_name",
    "sub_part",
    "index_comment",
)
VIEWS = Part(
    source=_I_S + "views",
    columns=(
        _local("view_definition"),
        "check_option",
        "definer",
        "security_type",
    ),
)
TRIGGERS = Part(
    source=_I_S + "triggers",
    schema="trigger_schema",
    table="event_object_table",
    columns=(
        "trigger_name",
        "action_timing",
        "event_manipulation",
        "action_order",
        _local("action_statement", "trigger_schema"),
        "definer",
    ),
)
REFERENCES = Part(
    source=_I_S + "referential_constraints",
    schema="constraint_schema",
    columns=(
        "constraint_name",
        _own("unique_constraint_schema", "constraint_schema"),
        "unique_constraint_name",
        "referenced_table_name",
        "match_option",
        "update_rule",
        "delete_rule",
    ),
)
REFERENCING = Part(
    source=_I_S + "key_column_usage",
    columns=(
        "constraint_name",
        "ordinal_position",
        "column_name",
        "position_in_unique_constraint",
        _own("referenced_table_schema", "table_schema"),
        "referenced_table_name",
        "referenced_column_name",
    ),
    more="AND table_name IN :tables AND referenced_table_name IS NOT NULL",
)
#: By whether it is MariaDB: what that opens no table for.
SEEN: Mapping[bool, Sequence[Part]] = {
    True: (
        COLUMNS,
        TRIGGERS,
        Part(source=_I_S + "statistics", columns=(*_INDEX, "ignored")),
    ),
    False: (
        COLUMNS,
        TRIGGERS,
        Part(
            source=_I_S + "statistics",
            columns=(
                *_INDEX,
                "collation",
                "index_type",
                "expression",
                "is_visible",
            ),
        ),
    ),
}
#: Likewise: what MariaDB opens every table for.
CHECKS: Mapping[bool, Part] = {
    True: Part(
        source=_I_S + "check_constraints",
        schema="constraint_schema",
        columns=("constraint_name", "level", "check_clause"),
    ),
    # There a CHECK does not say of which table it is.
    False: Part(
        source=_I_S + "check_constraints JOIN " + _I_S + "table_constraints "
        "USING (constraint_schema, constraint_name)",
        schema="constraint_schema",
        columns=("constraint_name", "enforced", "check_clause"),
        more="AND constraint_type = 'CHECK'",
    ),
}
#: Which tables are views.
ARE_VIEWS = text(
    "SELECT table_schema, table_name FROM information_schema.tables "
    "WHERE table_schema IN :schemas AND table_type = 'VIEW'"
).bindparams(bindparam("schemas", expanding=True))
