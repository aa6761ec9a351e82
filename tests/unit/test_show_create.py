"""SHOW CREATE TABLE of MySQL and MariaDB, as far as it is compared."""

from __future__ import annotations

from hashlib import sha256
from types import SimpleNamespace

import pytest

from sqla_shard.dialects.mysql.catalogue import without_counter, without_implied
from sqla_shard.dialects.mysql.ddl import digest_of

MYSQL = SimpleNamespace(is_mariadb=False)
MARIADB = SimpleNamespace(is_mariadb=True)

# What MySQL 9.7 shows for a table, and for its copy from this text.
ORIGINAL = """CREATE TABLE `pins` (
  `id` int NOT NULL,
  `body` varchar(10) COLLATE utf8mb4_bin DEFAULT NULL,
  `kind` enum('a','b''x') COLLATE utf8mb4_bin DEFAULT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"""
COPY = ORIGINAL.replace(
    " COLLATE utf8mb4_bin", " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
)


def test_a_copy_is_as_its_original() -> None:
    assert COPY != ORIGINAL
    assert without_implied(COPY) == ORIGINAL
    assert digest_of(COPY, MYSQL) == digest_of(ORIGINAL, MYSQL)


@pytest.mark.parametrize(
    "created",
    [
        "`a` text COMMENT 'x CHARACTER SET latin1 COLLATE latin1_bin'",
        "`a` text COMMENT 'it''s CHARACTER SET latin1 COLLATE latin1_bin'",
        "`a` text COMMENT 'it\\'s CHARACTER SET latin1 COLLATE latin1_bin'",
        "`a` enum(' CHARACTER SET latin1 COLLATE latin1_bin')",
        "` CHARACTER SET latin1 COLLATE latin1_bin` int",
        "`a``` int COMMENT ' CHARACTER SET latin1 COLLATE latin1_bin'",
        "`a` text CHARACTER SET latin1",
        "`a` text COMMENT ' TABLESPACE = `innodb_system` '",
    ],
)
def test_texts_and_names_stay(created: str) -> None:
    assert without_implied(created) == created


def test_another_collation_is_another_table() -> None:
    other = COPY.replace("utf8mb4_bin DEFAULT NULL", "utf8mb4_0900_ai_ci")
    assert digest_of(other, MYSQL) != digest_of(ORIGINAL, MYSQL)


def test_the_default_tablespace_is_left_out() -> None:
    """MySQL names it of a copy, or of a table that was altered, alone."""
    altered = ORIGINAL.replace(
        ") ENGINE", ") /*!50100 TABLESPACE `innodb_system` */ ENGINE"
    )
    parts = """
/*!50100 PARTITION BY RANGE (`id`)
(PARTITION p VALUES LESS THAN MAXVALUE{} ENGINE = InnoDB) */"""
    assert without_implied(altered + parts.format("")) == ORIGINAL + parts.format("")
    shown = ORIGINAL + parts.format(" TABLESPACE = `innodb_system`")
    assert without_implied(shown) == ORIGINAL + parts.format("")
    named = altered.replace("innodb_system", "g1")
    assert without_implied(named) == named


def test_the_counter_is_left_out() -> None:
    counted = ORIGINAL.replace("InnoDB ", "InnoDB AUTO_INCREMENT=17 ")
    assert without_counter(counted) == ORIGINAL
    assert digest_of(counted, MYSQL) == digest_of(ORIGINAL, MYSQL)


def test_digests_of_mariadb_stay() -> None:
    """A ledger may have one of an earlier release of this package."""
    before = sha256(COPY.encode()).hexdigest()
    assert digest_of(COPY, MARIADB) == before
    assert digest_of(COPY, MYSQL).split()[0] == "mysql"
