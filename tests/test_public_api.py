"""The names that the package exports, and ``__all__``."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from typing import Any

import pytest
from sqlalchemy.exc import SQLAlchemyError

import sqla_shard
from sqla_shard import exc

MODULES = [
    found.name
    for found in pkgutil.walk_packages(sqla_shard.__path__, "sqla_shard.")
    if not found.name.startswith("sqla_shard.testing.")
]
ERRORS = [
    value
    for value in map(vars(exc).__getitem__, exc.__all__)
    if isinstance(value, type) and issubclass(value, exc.ShardError)
]


@pytest.mark.parametrize("name", ["sqla_shard", *MODULES])
def test_listed_names_exist_and_are_documented(name: str) -> None:
    module: Any = importlib.import_module(name)
    assert module.__doc__, name
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            public
            for public, value in vars(module).items()
            if not public.startswith("_") and getattr(value, "__module__", None) == name
        ]
    assert len(set(listed)) == len(listed)
    for public in listed:
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{name}.{public}"


def test_the_front_door_is_small() -> None:
    assert len(sqla_shard.__all__) <= 30


def test_public_methods_say_what_they_raise() -> None:
    # The classes that users call; their errors of ours are documented.
    for cls in (sqla_shard.Cluster, sqla_shard.ShardSession):
        for name, value in vars(cls).items():
            if name.startswith("_") or not inspect.isfunction(value):
                continue
            source = inspect.getsource(value)
            if "raise " in source:
                assert ":raises" in (value.__doc__ or ""), name


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_errors_are_sqlalchemys_and_drawn(error: type[Any]) -> None:
    assert issubclass(error, SQLAlchemyError)
    assert error.__name__ in (exc.__doc__ or "")
    assert error.__name__.endswith("Error")


def written(shard_id: int, server: str) -> exc.WrittenShard:
    return exc.WrittenShard(keyspace="objects", shard_id=shard_id, server=server)


SAMPLES = [
    exc.InvalidIdError("m", value=3),
    exc.WrongTypeError("m", value=3, expected=(1,)),
    exc.DuplicateTypeError(type_id=1, holder="A", claimant="B"),
    exc.IdLayoutError("m", value=64),
    exc.IdLayoutMismatchError(
        keyspace="objects", keyspace_layout="ids of", class_layout="ids"
    ),
    exc.MissingIdError(table="photos", reason="Set it: Photo(id=...)"),
    exc.IdServiceError("no server responds"),
    exc.LocalIdsExhaustedError(object_id=7, type_id=1, bits=36),
    exc.ClassDefinitionError("m", class_name="A"),
    exc.ManyToManyError("m", class_name="A", relationship="bs", secondary="links"),
    exc.TopologyError([exc.Problem("epoch", "missing")], source="t.toml"),
    exc.TopologyUnavailableError(source="s", reason="gone"),
    exc.StaleTopologyError(source="s", epoch=3, current=4),
    exc.TopologyRefusedError([exc.Problem("a", "b")], source="s", epoch=5, current=4),
    exc.TopologyConflictError(source="s", expected=3, found=None),
    exc.ServerRetiredError(server="server1"),
    exc.UnknownKeyspaceError("m", keyspace=None, known=["a"]),
    exc.UnknownShardError(shard_id=9, keyspace="objects", opened=4),
    exc.UnknownServerError(server="a", known=["b"]),
    exc.NoShardKeyError("m", tables=["pins"]),
    exc.KeyspaceMismatchError({"a": ("x",), "b": ("y",)}),
    exc.KeyspaceMismatchError({"a": ("x",)}, named="b"),
    exc.ScatterUnsupportedError("m", construct="LIMIT"),
    exc.ScatterDisabledError("m"),
    exc.ScatterLimitError(limit="max_rows", allowed=3, found=4),
    exc.ScatterTimeoutError(servers=["a"], timeout=0.5),
    exc.ScatterFailedError({3: ValueError("x")}),
    exc.ServerUnreachableError(server="a", error=OSError("m")),
    exc.EncryptedStatementsError(connections=2),
    exc.LoginFailedError(server="a", error=OSError("m")),
    exc.UnkeyedReferenceError(server="a", error=OSError("m")),
    exc.ServerFencedError(server="a", error=OSError("m")),
    exc.ShardMovedError(
        keyspace="objects",
        shards=range(20),
        from_server="a",
        to_server="b",
        epoch=3,
        error=OSError("m"),
    ),
    exc.ShardMissingError(
        keyspace="objects",
        shards=[3],
        server="a",
        lacks="grant",
        epoch=3,
        error=OSError("m"),
    ),
    exc.KeyUsedError(key="order-17", shard_id=3, keyspace="objects"),
    exc.UnsupportedStatementError("m", construct="cast()"),
    exc.InvalidSequenceError(value="7"),
    exc.InvalidMoveError("m", target_id=3, before=None, after=None),
    exc.MissingTargetError(mapping="A", source_id=1, target_id=2),
    exc.SequenceExhaustedError(mapping="A", source_id=1, rows=5),
    exc.StaleNeighbourError(
        mapping="A", source_id=1, target_id=2, before=3, after=None, missing=[3]
    ),
    exc.InvalidKeyError(key="k", reason="r"),
    exc.KeyTakenError(lookup="A", key="k", target_id=3, expires_at=None),
    exc.ClaimLostError(lookup="A", key="k", target_id=None),
    exc.KeyNotHeldError(lookup="A", key="k", target_id=3),
    exc.KeyPendingError(lookup="A", key="k", target_id=3),
    exc.KeptMappingError(mapping="PinInBoards", kept_by="BoardHasPins"),
    exc.JobError("no"),
    exc.TaskDefinitionError("it takes nothing", task="t"),
    exc.UnknownTaskError(task="t"),
    exc.JobArgumentError("is a set", task="t", parameter="n"),
    exc.JobOptionError("is odd", option="priority", value=9),
    exc.JobClaimLostError(jobs=("objects/1/2",)),
    exc.JobTimeLimitError(task="t", seconds=1.5),
    exc.NoHealthyShardsError(keyspace="objects", servers={"a": "down"}),
    exc.UnsafeBinaryLogError(server="a"),
    exc.OperationError("no"),
    exc.OperationDefinitionError("it takes nothing", operation="plus"),
    exc.OperationArgumentError("is a set", operation="plus", parameter="n"),
    exc.UnknownOperationError(operation="plus"),
    exc.LookupPolicyError(lookup="A", key="k", policy="exact/1", known=["email/1"]),
    exc.ReferenceWriteError(reference="A"),
    exc.ReferenceRowsError(reference="A", row={"a": 1}, reason="r"),
    exc.ReferenceSizeError(reference="A", rows=3, most=2),
    exc.ReferenceIncompleteError(
        reference="A",
        keyspace="objects",
        done=range(20),
        errors={20: ValueError("x")},
        not_reached=[21],
    ),
    exc.OptionError("m", option="servers", value=["a"]),
    exc.CacheKeyError(key="a b"),
    exc.CacheClassError("m", class_name="Pin"),
    exc.CachedFunctionError("m", function="users.get_many"),
    exc.CachedWriteError("m", table="pins"),
    exc.CacheConfigError("m", path="c.toml", key="regions.a"),
    exc.VerifyPositionError(path="p.json", reason="m"),
    exc.InvalidBookmarkError("m", bookmark="x"),
    exc.BookmarkKeyError("m", index=1),
    exc.FleetSetupError("m"),
    exc.FleetServerError(server="a (h:1)", number=1290, reason="read-only"),
    exc.FleetLockedError(
        fleet="t.json", operation="failover of a", holder="h 1", running=True
    ),
    exc.CopyFailedError(target="b", reason="r"),
    exc.FleetLockLostError(fleet="t.json", operation="f", reason="expired"),
    exc.OperationRefusedError([exc.Problem("a", "b")], operation="f"),
    exc.OperationFailedError(operation="f", step="s", reason="r", undone=True),
    exc.NoOperationError(fleet="t.json"),
    exc.ApplierStoppedError(server="a (h:1)", reason="r", statement="START"),
    exc.UndoRefusedError(operation="f", epoch=3),
    exc.BackupFailedError(server="a", reason="r"),
    exc.BackupNotFoundError(backup="b", folder="/b", known=("a",)),
    exc.BackupDamagedError([exc.Problem("a", "b")], backup="b"),
    exc.ParameterValueError("\ud800", "a lone surrogate"),
    exc.PlacementError("m"),
    exc.ColocationError("m", class_name="A", field="f", value=None),
    exc.CrossShardWriteError(first=(1, "a"), second=(2, "b")),
    exc.BlobValueError("m", field="A.f", value=1),
    exc.BlobTooLargeError(size=9, limit=8),
    exc.BlobCompressionError("m"),
    exc.UnreadableBlobError(table="a"),
    exc.DamagedBlobError(
        table="a", object_id=7, dictionary_id=0x123, reason="it is short"
    ),
    exc.DictionaryNotFoundError(table="a", dictionary_id=1, unreachable=("s",)),
    exc.DictionaryError("m", name="a"),
    exc.StaleDataError(class_name="A", object_id=1, fields=["f"]),
    exc.CommitUnknownError(server="s", shards_unknown=[written(1, "s")]),
    exc.PartialCommitError(
        committed=["a"],
        failed="b",
        rolled_back=["c"],
        unknown=True,
        shards_committed=[written(i, "a") for i in range(12)],
        shards_unknown=[written(20, "b")],
        shards_rolled_back=[written(30, "c")],
    ),
    exc.RetriesExhaustedError(
        attempts=3,
        last=ValueError("x"),
        failures=["ValueError: x"] * 3,
        counts={"ValueError": 3},
    ),
    exc.ClusterClosedError("m"),
    exc.ForkedSessionError("m"),
    exc.ConcurrentUseError("m"),
    exc.NoEventLoopError("m"),
    exc.MissingDriverError(driver="pymysql", reason="m"),
    exc.BlockedError(follower_id=1, blocker_id=2),
    exc.FeedStoreError("m", server="cache1:6379"),
    exc.FollowRefusedError("m", follower_id=1, target_id=2),
    exc.MissingExtraError(package="Flask", extra="flask", reason="m"),
    exc.ProvisionError([exc.Problem("epoch", "low")] * 21, keyspace="objects", epoch=2),
    exc.ReservedNameError(table="sqla_shard_x"),
    exc.SchemaOptionError("m", option="jobs", value="0"),
    exc.DivergedRevisionsError(target="+1", heads={"a": "shards 0-3"}),
    exc.InDoubtError("m", statement="TRUNCATE pins"),
    exc.MigrationFailedError("m", report={"ok": False}, shards=[3]),
    exc.ExtensionSetupError("m", app="shop"),
    exc.StatementTextError("m", statement="select("),
    exc.ServerProcessError("m", log="l"),
    exc.DeclarationError(["a", "b"], source="d.toml"),
    exc.ConversionError(column="posts.title", value="7", reason="r"),
    exc.MigrateSetupError("m"),
    exc.SideClosedError(side="legacy", stage="closing"),
    exc.StageChangedError(expected=1, found=2, stage="marking"),
    exc.StageConflictError(store="s", expected=1, found=2),
    exc.StageRefusedError(stage="marking", wanted="switched", reason="r"),
    exc.StageUnavailableError(store="s", reason="r"),
    exc.UnclaimableRowError(table="posts", key=7),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
def test_errors_survive_pickling(error: exc.ShardError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    # As text, for errors inside of others are equal to themselves only.
    assert repr(again.__dict__) == repr(error.__dict__)


def test_every_error_has_a_sample() -> None:
    bases = {
        exc.ShardError,
        exc.RoutingError,
        exc.BlobError,
        exc.MappingError,
        exc.LookupTableError,
        exc.ReferenceTableError,
        exc.StaleListError,
        exc.SchemaError,
        exc.FleetError,
        exc.FollowError,
        exc.MigrateError,
    }
    assert {type(s) for s in SAMPLES} == set(ERRORS) - bases


def test_errors_of_applications_need_no_message() -> None:
    """Such as those of a placement policy: ``raise NoRoom``."""

    class NoRoom(exc.PlacementError):
        pass

    with pytest.raises(exc.ShardError) as caught:
        raise NoRoom
    assert str(caught.value) == ""
    assert str(NoRoom("full")) == "full"
