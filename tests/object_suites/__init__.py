"""Tests of object classes that run on SQLite and on MariaDB alike.

Each module has abstract suites; ``tests/sqlite`` and ``tests/live`` give
them a cluster.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "aliases",
            "attributes",
            "bulk",
            "changes",
            "data_classes",
            "expressions",
            "filters",
            "harness",
            "hiding",
            "histories",
            "lifecycle",
            "merging",
            "one_table",
            "plain_models",
            "racing",
            "random_values",
            "sizes",
            "values",
            "versions",
            "writers",
        )
    )
)
