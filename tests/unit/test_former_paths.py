"""Documented names of earlier versions can still be imported."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys

import pytest

from sqla_shard.lookup import Claim
from sqla_shard.models.soft_delete import _is_active
from sqla_shard.util.former import FORMER

# As the documentation named them before the rooms were as they are now.
DOCUMENTED = {
    "sqla_shard.async_session": """
        AsyncShardSession
    """,
    "sqla_shard.cache": """
        Cache Cached CachedFunction ClassStats Counts Region RegionStats
        Times cached_list cached_objects load_cache load_regions
        open_region store_of
    """,
    "sqla_shard.cache.dogpile_backend": """
        MemcachedBackend MemcachedStore
    """,
    "sqla_shard.cache.outbox": """
        DrainReport Waiting drain outbox_size
    """,
    "sqla_shard.cache.redis": """
        RedisStore
    """,
    "sqla_shard.cache.statistics": """
        NodeStats
    """,
    "sqla_shard.committed": """
        CommittedKey HalfCommit
    """,
    "sqla_shard.deleting": """
        DeletionPlan Part async_delete_object delete_object plan_deletion
    """,
    "sqla_shard.engines": """
        EngineStats
    """,
    "sqla_shard.explaining": """
        Explanation Target
    """,
    "sqla_shard.ext.flask": """
        ContextSession FlaskCluster ObjectIdConverter
    """,
    "sqla_shard.ext.flask_app": """
        shard_commands
    """,
    "sqla_shard.ext.flask_pagination": """
        Pagination
    """,
    "sqla_shard.ext.horizontal_shard": """
        Lanes ShardedSession
    """,
    "sqla_shard.ext.opentelemetry": """
        Instrumentation instrument
    """,
    "sqla_shard.following": """
        FollowedSource Follower HistoryEntry NOT_PUBLISHED ProtectedNode
        Publication Publisher RaisedGeneration Snapshot SourceReport
        source_at
    """,
    "sqla_shard.health": """
        Health
    """,
    "sqla_shard.ids": """
        LOCAL_BITS SHARD_SHIFT TYPE_SHIFT unpack
    """,
    "sqla_shard.intents": """
        Pending PendingCount RepairReport discard
    """,
    "sqla_shard.lookup": """
        Claim Normalization async_change async_sign_up change sign_up
    """,
    "sqla_shard.lookup.normalization": """
        casefold email exact
    """,
    "sqla_shard.mappings": """
        NarrowGap
    """,
    "sqla_shard.reference": """
        Deviation ReferencesReport Unread verify_references
    """,
    "sqla_shard.rehearsing": """
        Sent
    """,
    "sqla_shard.scattering": """
        ServerReport StatementReport
    """,
    "sqla_shard.schema": """
        Answer DriftReport Outcome ProvisionReport Resolution RunOptions
        RunReport Shard ShardStatus State StatusReport comparing
        current_shard downgrade init parse_shards progress_on provision
        resolve run_env template_path upgrade verify
    """,
    "sqla_shard.session": """
        PlacementPolicy RandomPlacement
    """,
    "sqla_shard.testing": """
        ExternalServer Finding LoggedCommand LoggedEvent MariaDBFleet
        MariaDBPair MariaDBServer MemcachedServer Proxy ProxyCounts
        QueryLog RedisServer ShardLint SourceLine StatementLog
        ZooKeeperEnsemble ZooKeeperServer sqlite_topology
    """,
    "sqla_shard.testing.binaries": """
        find_memcached
    """,
    "sqla_shard.topology": """
        CountChange DatabaseChange FileSource GenerationChange Keyspace
        Kind KindChange Location MAX_SHARDS MovedRange Server ServerChange
        ShardRange Topology TopologyDiff TopologySource UrlChange
        WeightChange describe diff fill find_object find_shard
        read_document redact refusals to_json
    """,
    "sqla_shard.types": """
        UTCTimestamp
    """,
    "sqla_shard.verifying": """
        Finding OpenClaim Tally UnreadShard VerifyProgress VerifyReport
        delete_abandoned open_claims verify_lookups verify_relations
    """,
}


@pytest.mark.parametrize("path", DOCUMENTED)
def test_documented_names_are_found(path: str) -> None:
    module = importlib.import_module(path)
    for name in DOCUMENTED[path].split():
        assert getattr(module, name), f"{path}.{name}"


@pytest.mark.parametrize("path", FORMER)
def test_present_modules_are_found_first(path: str) -> None:
    assert importlib.util.find_spec(path).loader.__class__.__name__ == "_Finder"
    for present in FORMER[path]:
        assert importlib.import_module(present).__file__


def test_a_former_name_is_the_same_object() -> None:
    module = importlib.import_module("sqla_shard.verifying")
    assert (
        module.verify_lookups
        is importlib.import_module("sqla_shard.verify").verify_lookups
    )


def test_pickles_of_earlier_versions_are_read() -> None:
    claim = Claim(lookup=int, key="a", token=b"b", expires_at=None)
    old = pickle.dumps(claim, 0).replace(
        b"sqla_shard.models.lookup_claims", b"sqla_shard.lookup.claiming"
    )
    assert b"sqla_shard.lookup.claiming" in old
    assert pickle.loads(old) == claim
    old = pickle.dumps(_is_active, 0).replace(
        b"sqla_shard.models.soft_delete", b"sqla_shard.orm.hiding"
    )
    assert b"sqla_shard.orm.hiding" in old
    assert pickle.loads(old) is _is_active


def test_an_unknown_name_of_a_former_path_is_an_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from sqla_shard.following import nothing")  # noqa: S102
    assert not hasattr(importlib.import_module("sqla_shard.following"), "nothing")


def test_former_paths_load_nothing_before_they_are_used() -> None:
    program = (
        "import sys, sqla_shard; from sqla_shard.util.former import FORMER; "
        "print([name for name in FORMER if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
