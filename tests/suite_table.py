"""The backends of each suite.

Each line names a module of ``tests/suites``.  The first backends are those
of the smaller runs, see ``tests/tiers.py``.  What runs on MariaDB also runs on
MySQL, see ``tests/collecting.py``.
"""

from __future__ import annotations

from tests.models.backends import BOTH, EVERYWHERE, MYSQLCLIENT, On
from tests.suites.cache_mutations import MANY

_MANY_CONNECTIONS = {"engine_options": {"pool_size": 30}}
_COMMITTED = {"engine_options": {"pool_size": 30, "isolation_level": "READ COMMITTED"}}

_FEW_CHANGES = {"History.changes": 10}
_FEW_DIFFERENT = {"Differential.selects": 200, "Differential.changes": 60}
_FEW_MERGED = {"MergedDifferential.statements": 100, "MergedDifferential.free": 200}
_FEW_NUMBERS = {"MergedNumbers.statements": 100}
_LONG_PAGES = {"MergedPages.size": 11}
_MUTATED = {"Mutated.times": 10 * MANY}

#: The backends of each module of suites.
SUITES: dict[str, tuple[On, ...]] = {
    # Sessions.
    "differential": (
        On("sqlite", few=_FEW_DIFFERENT),
        On(
            "mariadb",
            values={"Differential.selects": 300, "Differential.changes": 60},
            few=_FEW_DIFFERENT,
        ),
        On("sqlite-loop", values=_FEW_DIFFERENT),
    ),
    "awaited": BOTH,
    "flushing": EVERYWHERE,
    "hostile_values": (*BOTH, MYSQLCLIENT),
    "inserting": EVERYWHERE,
    "named_keyspaces": BOTH,
    "placing": EVERYWHERE,
    "proofs": BOTH,
    "querying": EVERYWHERE,
    "reading": (*EVERYWHERE, MYSQLCLIENT),
    "remedies": BOTH,
    "resetting": BOTH,
    "rolled_back": BOTH,
    "scatter_pages": (
        On("sqlite", few={"ScatterPages.orders": 12}),
        On("mariadb", few={"ScatterPages.orders": 12}),
    ),
    "semantics": (*EVERYWHERE, MYSQLCLIENT),
    "shared_sessions": (On("mariadb"),),
    "texts": BOTH,
    "time_ids": (
        On("sqlite"),
        On("mariadb", options=_MANY_CONNECTIONS),
        On("sqlite-loop", only="TimeInserts"),
        On("mariadb-loop", only="TimeInserts"),
    ),
    "two_layouts": BOTH,
    "updating": EVERYWHERE,
    "writing": (*EVERYWHERE, MYSQLCLIENT),
    # Merged rows.
    "merged": (
        On("sqlite", few=_FEW_MERGED),
        On("mariadb", values={"MergedDifferential.statements": 350}, few=_FEW_MERGED),
    ),
    "merged_computed": BOTH,
    "merged_corners": (
        On("sqlite", few={"MergedCorners.conditions": 40}),
        On("mariadb", few={"MergedCorners.conditions": 40}),
    ),
    "merged_numbers": (
        On("sqlite", few=_FEW_NUMBERS),
        On("mariadb", few=_FEW_NUMBERS),
        MYSQLCLIENT._replace(values=_FEW_NUMBERS),
    ),
    "merged_pages": (On("sqlite", few=_LONG_PAGES), On("mariadb", few=_LONG_PAGES)),
    "merged_types": (On("sqlite", only="MergedTypes"), On("mariadb"), MYSQLCLIENT),
    "merging": (
        # Each shard is a file.
        On("sqlite", values={"Merging.named": 4, "Merging.everywhere": 32}),
        On("mariadb", values={"Merging.named": 3, "Merging.everywhere": 4}),
    ),
    "web_forms": BOTH,
    # Lists, lookups, references, relationships.
    "awaited_lists": BOTH,
    "deleting": (On("sqlite"), On("mariadb"), On("sqlite-cached")),
    "lookup_awaited": BOTH,
    "lookup_claiming": (On("sqlite"), On("mariadb", options=_MANY_CONNECTIONS)),
    "lookup_reading": BOTH,
    "lookup_registration": BOTH,
    "many_to_many": BOTH,
    # Those of `awaited_lists` are awaited on SQLite.
    "mapping_changes": (*BOTH, On("mariadb-loop")),
    "mapping_counts": (
        On("sqlite", values={"Histories.threads": 3}),
        On("mariadb", options=_MANY_CONNECTIONS, few={"Histories.changes": 15}),
    ),
    "mapping_gap": (
        On(
            "sqlite",
            values={"Gap.wide": {"random": 3000, "above": 2000}},
            few={"Gap.moves": 300, "Gap.wide": {}},
        ),
        On("mariadb", values={"Gap.moves": 500}, few={"Gap.moves": 200}),
    ),
    "mapping_inverse": BOTH,
    "mapping_machine": (
        On("sqlite", few={"Models.examples": 8}),
        On("mariadb", values={"Models.examples": 20}, few={"Models.examples": 8}),
    ),
    "mapping_racing": (
        On("sqlite", values={"Racing.rounds": 10}, few={"Racing.rounds": 4}),
        On("mariadb", options=_MANY_CONNECTIONS, few={"Racing.rounds": 8}),
        On(
            "mariadb-committed",
            options=_COMMITTED,
            values={"Racing.locks_gaps": False},
            few={"Racing.rounds": 8},
        ),
    ),
    "mapping_reading": EVERYWHERE,
    "mapping_sets": BOTH,
    "mapping_spread": BOTH,
    "spread_stages": (
        On("sqlite", few=_FEW_CHANGES),
        On("mariadb", only="Deleted History Inverse", few=_FEW_CHANGES),
    ),
    "verify_lookups": (
        On("sqlite", only="Together Damage Rekeying Resuming Runs"),
        On("mariadb", only="Together Rekeying Uncommitted"),
    ),
    "verify_racing": BOTH,
    "verify_relations": (On("sqlite", only="Damage ConcurrentWriters"), On("mariadb")),
    # The cache.
    "cache_functions": BOTH,
    "cache_mutations": (
        On("sqlite"),
        On("sqlite-loop", values=_MUTATED),
        On("mariadb-loop", values=_MUTATED),
    ),
    "cached_autocommit": BOTH,
    "cached_bypass": EVERYWHERE,
    "cached_lists": (
        On("sqlite"),
        On("mariadb", values={"Alike.rounds": 10}),
        On("sqlite-loop"),
        On("mariadb-loop"),
    ),
    "cached_objects": (
        On("sqlite"),
        On("mariadb"),
        On("sqlite-loop", only="Equal State Many Absent"),
        On("mariadb-loop", only="Equal State Many Absent"),
    ),
    "cached_poison": (On("sqlite"), On("mariadb", only="Damage Versions")),
    "cached_writes": EVERYWHERE,
    # Operations on other shards.
    "operations": BOTH,
    "repairing": BOTH,
    # Follow graphs and feeds.
    "follow_graph": (
        On(
            "sqlite",
            only="Deletions Histories Lists Repairs Rules",
            few={"Histories.histories": 2},
        ),
        On("mariadb", options=_MANY_CONNECTIONS, values={"Histories.histories": 1}),
    ),
    "feeds": BOTH,
    # Jobs.
    "jobs": (
        On("sqlite"),
        On("mariadb"),
        On("sqlite-loop", only="Enqueueing Claiming"),
        On("mariadb-loop", only="Enqueueing Claiming"),
    ),
    "jobs_holding": BOTH,
    "jobs_working": BOTH,
    "jobs_operating": BOTH,
    "jobs_uses": BOTH,
    "jobs_delivering": BOTH,
    # Object classes.
    "compressed_blobs": (
        On("sqlite", few={"Alike.examples": 6}),
        On("mariadb", values={"Alike.examples": 10}, few={"Alike.examples": 6}),
        On("sqlite-loop", only="Unreadable"),
        On("mariadb-loop", only="Alike", values={"Alike.examples": 10}),
    ),
    "objects_aliases": BOTH,
    "objects_attributes": BOTH,
    "objects_beside": (
        On("sqlite", few={"BesideSuite.samples": 1}),
        On("mariadb", few={"BesideSuite.samples": 1}),
    ),
    "objects_bulk": BOTH,
    "objects_changes": BOTH,
    "objects_data_classes": BOTH,
    "objects_expressions": BOTH,
    "objects_filters": BOTH,
    "objects_hiding": BOTH,
    "objects_histories": BOTH,
    "objects_lifecycle": BOTH,
    "objects_merging": BOTH,
    "objects_one_table": BOTH,
    "objects_plain_models": BOTH,
    "objects_racing": BOTH,
    "objects_random_values": BOTH,
    "objects_refreshing": (
        On("sqlite", values={"RefreshSuite.histories": 40}),
        On("mariadb"),
    ),
    "objects_sizes": BOTH,
    "objects_values": BOTH,
    "objects_versions": (On("sqlite"), On("mariadb", only="VersionSuite")),
    "objects_writers": BOTH,
}

#: The suites that ``test`` runs on MySQL, and ``all`` on MariaDB 11.8: there
#: most of them once for each function, see ``tests/tiers.py``.
CORE = frozenset(
    [
        "cached_writes",
        "deleting",
        "differential",
        "inserting",
        "jobs",
        "lookup_claiming",
        "mapping_changes",
        "mapping_racing",
        "merged",
        "merged_types",
        "objects_changes",
        "objects_filters",
        "objects_histories",
        "objects_merging",
        "objects_racing",
        "objects_values",
        "objects_versions",
        "objects_writers",
        "operations",
        "querying",
        "reading",
        "scatter_pages",
        "semantics",
        "texts",
        "updating",
        "writing",
    ]
)

#: The suites that run once more on SQLite and on MariaDB, with ids of another
#: layout (tests/servers/other_layout.py).
WITH_ANOTHER_LAYOUT = (
    "reading",
    "writing",
    "inserting",
    "mapping_reading",
    "mapping_inverse",
    "lookup_reading",
    "scatter_pages",
    "verify_relations",
)

#: The suites that run once more with ids that begin with the time, and their
#: tests that are left out.  These expect that an id of another class is
#: recognized, insert local ids with textual SQL, or count connections.
WITH_TIME_IDS = {
    "reading": (
        "test_invalid_ids_are_refused test_one_bad_id_and_nothing_is_sent "
        "test_lazy_parent"
    ),
    "mapping_reading": "test_forged_bookmarks",
    "mapping_inverse": "",
    "lookup_reading": "test_ids_of_other_classes_are_refused",
    "scatter_pages": "test_forged_values",
    "verify_relations": "test_reported_only",
    "writing": "test_one_transaction_per_server",
}
