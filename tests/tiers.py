"""Requirements of each test, and the tiers that it belongs to.

There are three tiers, each with all of the ones before it but the suites
that the next one runs on another backend, and a few that need none:

``check``
    Python alone: unit tests, SQLite, nothing started, few random values.
    ``make check``.
``test``
    Real servers and processes, each suite on the backend that matters, and
    a few tests in a browser.  ``make test``.
``all``
    Everything.  ``make all``; also what pytest runs by default.

``pythons`` is ``check`` for a second Python: with some of the tests that start
programs, without those that read the sources or measure time, and with each
function that needs a database once (``--once``), whatever its parameters.

A test says what it needs by a marker, most often by where it is:

``live``
    Servers: it asks for one of the fixtures that start them.
``processes``
    Programs that it starts, without servers.
``browser``
    Chromium: ``tests/browser``.
``thorough``
    Takes longer than its area can have in ``make test``: processes that are
    killed, operations of fleets, fuzzers and random runs, a second backend,
    event loops, most of the browser, the pages of the documentation, and the
    helpers of tests themselves.

What tries random values tries fewer of them before ``all``: see ``few`` in
tests/suite_table.py, and the profiles of hypothesis in tests/conftest.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TIERS = ("check", "test", "all", "pythons")

#: Fixtures of ``sqla_shard.testing`` that start servers.
_SERVERS = frozenset(
    {
        "mariadb_fleet",
        "mariadb_installed",
        "mysql_fleet",
        "mysql_installed",
        "memcached_installed",
        "redis_installed",
        "server_kind",
        "zookeeper_installed",
        "zookeeper_server",
    }
)

#: Modules by what they need, where neither folder nor fixtures tell.
_PROCESSES = frozenset(
    [
        "test_audit",
        "test_bookmarks_limits",
        "test_cli",
        "test_cli_cache",
        "test_cli_cache_option",
        "test_cli_dashboard",
        "test_cli_fuzzed",
        "test_cli_ids",
        "test_cli_metrics",
        "test_cli_repair",
        "test_cli_shell",
        "test_cli_topology",
        "test_cli_unread",
        "test_cli_verify",
        "test_demo",
        "test_docs",
        "test_examples",
        "test_flaky",
        "test_flask_ext",
        "test_hostile_fuzz",
        "test_opentelemetry",
        "test_other_layout",
        "test_packaging",
        "test_pinboard_cache",
        "test_pinboard_joining",
        "test_pinboard_lab",
        "test_pinboard_tables",
        "test_prometheus",
        "test_provision",
        "test_release",
        "test_repairing",
        "test_schema_emptied",
        "test_schema_files",
        "test_schema_newer",
        "test_schema_odd",
        "test_schema_runner",
        "test_jobs_killed",
        "test_schema_settings",
        "test_schema_showing",
        "test_schema_sqlite",
        "test_schema_workers",
        "test_testing_plugin",
        "test_testing_proxy",
        "test_testing_proxy_commits",
        "test_typing",
        "test_unpack",
        "test_upstream",
        "test_writing_load",
    ]
)
#: Not in `check`, of which they took a tenth of the processor time.
_LATER = frozenset(
    [
        "test_cli_completion",
        "test_cli_docs.test_help_and_completion_import_no_sqlalchemy",
        "test_horizontal_shard.test_many_sessions_in_many_threads",
        "test_lanes.test_threads_that_outlive_the_main_thread",
        "test_layers.test_each_room_can_be_imported_first",
        "test_lint_plugin",
        "test_microblog",
        "test_pinboard_importing",
        "test_references",
        "test_shadow_microblog",
        "test_testing_documents.test_needs_neither_pymysql_nor_pytest",
        "test_testing_jars.test_the_servers_load_no_client",
    ]
)
_THOROUGH = frozenset(
    [
        "mapping_changes.test_too_many_rows_without_room",
        "mapping_reading.test_the_cache_does_not_grow",
        "test_acls_chaos_zookeeper",
        "test_agent_zookeeper",
        "test_alerts",
        "test_async_faults",
        "test_blobs_kill",
        "test_bookmarks_limits",
        "test_browser_cache",
        "test_browser_dashboard",
        "test_browser_importing",
        "test_browser_lab",
        "test_browser_looks",
        "test_browser_moving",
        "test_browser_people",
        "test_browser_watching",
        "test_cache_dogpile_memcached",
        "test_cache_faults_memcached",
        "test_cache_faults_redis",
        "test_cache_generations.test_the_same_in_every_process",
        "test_cache_mutations.test_reads",
        "test_cache_outbox_faults",
        "test_cache_protocol",
        "test_cache_redis",
        "test_cache_sessions_checked",
        "test_cached_promises.test_all_that_waits_is_read_anew",
        "test_cached_together",
        "test_cli.test_each_command_names_its_extra",
        "test_cli.test_schema_without_alembic",
        "test_cli_cache.test_until_it_is_ended",
        "test_cli_cache_option_memcached",
        "test_cli_fuzzed",
        "test_cli_servers.test_requested_tls_is_used",
        "test_cli_servers.test_tls_is_as_the_url_says",
        "test_cli_repair.test_until_it_is_ended",
        "test_cli_unread",
        "test_cli_unread_servers",
        "test_cli_zookeeper.test_one_of_several_processes_wins",
        "test_cli_zookeeper.test_with_tls",
        "test_clients_zookeeper",
        "test_commit_cuts",
        "test_demo",
        "test_dev_up",
        "test_docs.test_sphinx_builds_without_a_warning",
        "test_feeds_redis.test_equal_to_the_tables_under_load",
        "test_flaky",
        "test_fleet_backup_servers.test_a_folder_of_fsspec",
        "test_fleet_backup_servers.test_a_folder_that_fails_in_the_middle",
        "test_fleet_backup_servers.test_a_killed_restore_is_resumed_or_undone",
        "test_fleet_compare_servers.test_a_command_that_gets_a_signal",
        "test_fleet_compare_servers.test_no_false_difference_under_writes",
        "test_fleet_doctor_servers.test_a_fault_is_found_and_put_right",
        "test_fleet_journal_zookeeper.test_a_running_operation_is_not_taken_over",
        ("test_fleet_journal_zookeeper.test_of_many_that_take_over_at_once_one_wins"),
        "test_fleet_journal_zookeeper.test_resume",
        "test_fleet_split",
        "test_fleet_start",
        "test_following.test_500_changes_leave_nothing_behind",
        "test_following_zookeeper",
        "test_follows_killed",
        "test_follows_redis.test_equal_to_the_tables_under_load",
        "test_forked_sockets",
        "test_frozen_commands",
        "test_frozen",
        "test_hostile_fuzz",
        "test_hostile_fuzz_servers",
        "test_jobs.test_a_unique_key_of_racing_processes",
        "test_keys_servers",
        "test_load_servers.test_sampling_costs_less_than_1_percent_of_a_get",
        "test_load_memcached.test_the_reads_of_processes_are_summed",
        "test_logged_faults",
        "test_logged_fuzz",
        "test_lookups_claiming.test_the_microsecond_of_the_end",
        "test_lookups_registration_servers.test_sign_up_and_change",
        "test_lookups_tables_servers.test_all_tables_are_alike",
        "test_mappings_rows",
        "test_microblog_servers",
        "test_moving_lag",
        "test_moving_servers",
        "test_moving_model",
        ("test_moving_rows_servers.test_every_write_is_on_the_side_that_is_the_truth"),
        "test_ordered_fuzz",
        "test_other_layout",
        "test_other_layout_servers",
        "test_overlapping",
        "test_pinboard_importing.test_a_worker_that_is_killed",
        "test_pinboard_lab_servers",
        "test_pinboard",
        "test_pinboard_tables",
        "test_pinboard_tables_servers",
        "test_provision",
        "test_quickstart",
        "test_random_edits_zookeeper",
        "test_references_faults",
        "test_references_racing",
        "test_release",
        "test_repairing",
        "test_schema_doubt",
        "test_schema_emptied",
        "test_schema_emptied_chaos",
        "test_schema_emptied_servers",
        "test_schema_failures",
        "test_schema_indexes",
        "test_schema_joined.test_a_runner_that_was_killed",
        "test_schema_joined.test_a_table_without_its_indexes",
        ("test_schema_joined.test_connections_and_runners_that_are_killed"),
        "test_schema_joined.test_no_statement_is_in_doubt",
        "test_schema_joined.test_the_tables_are_equal",
        "test_schema_kill",
        "test_schema_lost",
        "test_schema_many",
        "test_schema_new_tables.test_connections_that_are_killed",
        "test_schema_newer",
        "test_schema_newer_chaos",
        "test_schema_odd",
        "test_schema_odd_servers",
        "test_schema_portable",
        "test_jobs_killed",
        "test_schema_settings",
        "test_schema_several",
        "test_schema_showing",
        "test_sign_ups",
        "test_spread_moves",
        "test_testing_servers",
        "test_testing_memcached",
        "test_testing_pairs",
        "test_testing_proxy",
        "test_testing_proxy_servers",
        "test_testing_redis",
        "test_testing_zookeeper",
        "test_topology_hostile",
        "test_typing",
        "test_upstream",
    ]
)

#: Tests whose assertion is a duration, or of processor time: they run last
#: and alone, see tests/scheduling.py.
_TIMED = frozenset(
    [
        "test_bookmarks_limits.test_no_attack_takes_long_or_much_memory",
        "test_bookmarks_limits.test_pieces_of_attacks",
        "test_browser_dashboard.test_65536_shards_are_drawn_in_a_second",
        ("test_load_servers.test_sampling_costs_less_than_1_percent_of_a_get"),
        "test_primary.test_a_shard_that_moves_is_followed",
        "test_primary.test_others_are_not_delayed",
        ("test_testing_proxy.test_connection_reaches_the_server_after_one_and_a_half"),
        "test_testing_proxy.test_half_of_it_is_on_each_way",
        "test_testing_proxy.test_a_request_without_a_response_waits_once",
        "test_testing_proxy.test_without_delay_answers_come_at_once",
        "test_topology_diff.test_the_largest_topology_in_milliseconds",
        "test_topology_model.test_finds_servers_quickly",
        "test_topology_model.test_loads_quickly",
    ]
)

#: Only in `all`: many values, orders, processes or times; random changes and
#: statements.
_MANY = frozenset(
    [
        "cache_mutations.test_reads",
        "cached_lists.test_random_changes",
        "compressed_blobs.test_nothing_is_lost",
        "compressed_blobs.test_random_changes",
        "differential.test_answers_are_equal_or_refused",
        "differential.test_changes_are_equal_or_refused",
        "follow_graph.test_equal_to_a_model",
        "lookup_registration.test_every_order_of_failure",
        "mapping_counts.test_the_count_is_that_of_the_acknowledged_changes",
        "mapping_gap.test_moves_into_one_gap",
        "mapping_machine.test_is_a_list",
        "mapping_racing.test_one_gap",
        "mapping_racing.test_two_boards",
        "merged.test_answers_are_equal",
        "merged_computed.test_is_what_one_database_computes",
        "merged_corners.test_random_having",
        "merged_numbers.test_numbers_are_equal_or_refused",
        "merged_pages.test_pages_are_all_rows_in_order",
        "objects_filters.test_comparisons",
        "proofs.test_the_compiled_cache_does_not_grow_with_ids",
        "repairing.test_by_four_threads",
        "scatter_pages.test_every_row_once_in_order",
        "spread_stages.test_equals_a_model",
        "spread_stages.test_operations_of_all_stages",
        "test_cached_machine.test_is_a_list",
        "test_masking.test_the_time_grows_with_the_length",
        "test_moving.test_a_pass_is_resumed_after_each_page",
        "test_normalization.test_each_character_alone",
        "test_normalization.test_exact_takes_every_character",
        "test_pinboard_refusals.test_invalid_links",
        "test_pymysql_results.test_a_connection_that_ends_is_lost",
        "test_pymysql_results.test_an_unexpected_packet_is_read_by_the_driver",
        "test_remedies",
        "test_topology_sizes.test_the_map_of_a_process_takes_less_than_5_mb",
        "time_ids.test_processes_whose_clocks_differ",
        "verify_lookups.test_a_commit_that_is_lost",
        "verify_racing",
    ]
)

#: Not in `test`: `check` runs them on SQLite, and a server is no different.
_ON_SQLITE = frozenset(
    [
        "awaited",
        "awaited_lists",
        "lookup_awaited",
        "mapping_sets",
        "objects_histories",
        "remedies",
        "two_layouts",
        "web_forms",
    ]
)

#: Not on a second Python: of the sources.
_ONE_PYTHON = frozenset(
    [
        "test_docs_claims",
        "test_docs_operate",
        "test_docstrings",
        "test_layers",
        "test_refusals",
        "test_fleet_messages.test_every_command_of_a_message_exists",
    ]
)

#: Core suites with all of their parameters on MariaDB 11.8: it has other
#: texts, and refuses changes of rows that others have changed.  Those of the
#: rest run on MariaDB 10.11 and on MySQL; 11.8 has each function once.
_ALL_ON_11 = frozenset(
    ["mapping_racing", "merged_types", "objects_histories", "objects_versions", "texts"]
)

#: Modules and tests that tiers leave out, whatever their markers.
_LEFT_OUT = {
    "check": _MANY | _LATER,
    "test": _MANY | _ON_SQLITE,
    "pythons": _MANY | _ONE_PYTHON | _TIMED,
}

#: Other words in the names of an area's modules.
_AREAS = {
    "cache": ("cached", "memcached", "redis", "dogpile"),
    "cli": ("command",),
    "contrib": ("follow", "follows", "feed", "feeds"),
    "cluster": ("health", "async", "loops", "overlapping", "usage"),
    "dialects": ("mysql", "pymysql", "passwords", "show"),
    "engine": (
        "engines",
        "connections",
        "lanes",
        "rendering",
        "union",
        "primary",
        "frozen",
    ),
    "exc": ("failures", "refusal", "summaries"),
    "ext": ("fastapi", "flask", "opentelemetry", "horizontal"),
    "fleet": (),
    "ids": ("id", "layout", "layouts"),
    "jobs": (),
    "lookup": ("lookups", "sign"),
    "monitor": (
        *("dashboard", "metrics", "load"),
        *("prometheus", "monitoring", "alerts"),
    ),
    "migrate": ("moving", "shadow"),
    "models": (
        "codecs",
        "definition",
        "hierarchies",
        "many",
        "mapping",
        "mappings",
        "objects",
        "records",
        "reference",
        "references",
        "tracking",
    ),
    "outbox": ("operation", "operations", "repairing", "logged"),
    "planning": (
        *("merge", "merged", "merging", "scatter", "ordering"),
        *("routing", "traps", "keyspaces", "statements", "remedies"),
    ),
    "schema": ("autogenerate", "drift", "provision"),
    "session": (
        "commits",
        "deleting",
        "paging",
        "placing",
        "proofs",
        "querying",
        "reading",
        "writing",
    ),
    "topology": ("following", "follower", "publishing", "zookeeper"),
    "testing": ("lint", "linting"),
    "types": ("blob", "compression", "sequences", "tracking", "layouts"),
    "upkeep": ("verify", "blobs", "spread"),
    "util": ("json", "masking", "threads"),
}


def mark(item: pytest.Item) -> None:
    """Add the markers of what a test needs."""
    stem = item.path.stem
    folder = item.path.parent.name
    if _SERVERS.intersection(getattr(item, "fixturenames", ())):
        item.add_marker("live")
    if folder == "browser":
        item.add_marker("browser")
    if stem in _PROCESSES:
        item.add_marker("processes")
    if stem in _THOROUGH or _name(item.nodeid) in _THOROUGH:
        item.add_marker("thorough")


def ignores(path: Path, config: pytest.Config) -> bool:
    """Return whether no test of a file or folder is selected.

    They are not imported then: that takes longer than many of the tests.
    """
    tier, area = config.getoption("--tier"), config.getoption("--area")
    small = tier in ("check", "pythons")
    if path.is_dir():
        return small and path.name in ("browser", "live")
    if not path.name.startswith("test_") and path.parent.name != "suites":
        return False
    if area and not _matches_area(path, area):
        return True
    if path.stem in _LEFT_OUT.get(tier, ()):
        return True
    if small and path.stem in _PROCESSES:
        return True
    return tier != "all" and path.stem in _THOROUGH


def _is_of_another_server(item: pytest.Item) -> bool:
    """Return whether a suite's test is ``only_on`` another kind of server."""
    marker = item.get_closest_marker("only_on")
    on = getattr(item.getparent(pytest.Module), "on", None)
    if marker is None or on is None or not on.live:
        return False
    return not on.kind.startswith(marker.args[0])


def _is_once_on_11(item: pytest.Item) -> bool:
    on = getattr(item.getparent(pytest.Module), "on", None)
    newer = on is not None and on.kind == "mariadb11"
    return newer and item.path.stem not in _ALL_ON_11


def _is_selected(item: pytest.Item, tier: str) -> bool:
    if _is_of_another_server(item):
        return False
    if tier == "all":
        return True
    needs = {marker.name for marker in item.iter_markers()}
    if _name(item.nodeid) in _LEFT_OUT.get(tier, ()):
        return False
    if tier in ("check", "pythons"):
        return not needs & {"live", "processes", "browser", "thorough"}
    return "thorough" not in needs


def measures_time(nodeid: str) -> bool:
    """Return whether a test is to run while no other runs."""
    return _name(nodeid) in _TIMED


def _function(item: pytest.Item) -> str:
    """Return what the tests of one function on one backend have in common.

    Unit tests take no time: all of them differ.
    """
    whole = item.nodeid
    return whole if item.path.parent.name == "unit" else whole.split("[")[0]


def _name(nodeid: str) -> str:
    """Return the module and the name of a test, without its parameters."""
    path, _, rest = nodeid.partition("[")[0].partition("::")
    # Not by a Path, which takes seconds for all tests.
    stem = path.rpartition("/")[2].removesuffix(".py")
    return f"{stem}.{rest.rpartition('::')[2]}"


def _matches_area(path: Path, area: str) -> bool:
    """Return whether a module tests a package of sqla_shard.

    :param area: name of the package, such as ``cache``.
    :raises pytest.UsageError: if it is not the name of one.
    """
    if area not in _AREAS:
        raise pytest.UsageError(
            f"--area: {area!r} is none of {', '.join(sorted(_AREAS))}"
        )
    words = set(path.stem.split("_"))
    return not words.isdisjoint({area, *_AREAS[area]})


def select(config: pytest.Config, items: list[Any]) -> None:
    """Leave out the tests that the tier does not have."""
    tier = config.getoption("--tier")
    kept = [item for item in items if _is_selected(item, tier)]
    once = tier == "pythons" or config.getoption("--once")
    more = config.getoption("--every-server")
    firsts: dict[str, pytest.Item] = {}
    for item in kept:
        alike = once or (_is_once_on_11(item) and not more)
        firsts.setdefault(_function(item) if alike else item.nodeid, item)
    kept = list(firsts.values())
    if len(kept) < len(items):
        chosen = set(kept)
        left_out = [item for item in items if item not in chosen]
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
