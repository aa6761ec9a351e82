"""Columns whose collation has another name on MySQL than on MariaDB."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles

#: MySQL's collations that are most like those that MariaDB alone has.
_ON_MYSQL = {
    "utf8mb4_nopad_bin": "utf8mb4_0900_bin",
    "utf8mb4_unicode_nopad_ci": "utf8mb4_0900_ai_ci",
    "uca1400_ai_ci": "utf8mb4_0900_ai_ci",
    "utf8mb4_uca1400_as_ci": "utf8mb4_0900_as_ci",
    "utf8mb4_uca1400_nopad_ai_ci": "utf8mb4_de_pb_0900_ai_ci",
    "utf8mb4_uca1400_as_cs": "utf8mb4_0900_as_cs",
    "utf8mb4_thai_520_w2": "utf8mb4_vi_0900_as_cs",
}


def collation_on(dialect: Dialect, name: str) -> str:
    """Return the name of a collation, or of one like it, on a server.

    :param dialect: that has connected.
    :param name: on MariaDB.
    """
    if getattr(dialect, "is_mariadb", False):
        return name
    return _ON_MYSQL.get(name, name)


class ServerText(mysql.VARCHAR):
    """VARCHAR of a collation of MariaDB, or of one like it on MySQL."""


@compiles(ServerText)
def _server_text(type_: ServerText, compiler: Any, **kw: Any) -> str:
    made = mysql.VARCHAR(
        type_.length,
        charset=type_.charset,
        collation=collation_on(compiler.dialect, type_.collation or ""),
    )
    return str(compiler.process(made, **kw))
