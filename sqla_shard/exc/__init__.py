"""Every error that this package raises.

All of them descend from :class:`sqlalchemy.exc.SQLAlchemyError`, so that a
handler written for SQLAlchemy catches them too.  Each names the value that
it met and what to do about it; the parts of the message are also attributes
of the instance.  All can be pickled, and none is wrapped into a
:class:`sqlalchemy.exc.StatementError` on its way out of a statement::

    ShardError
    ├── InvalidIdError (ValueError)       not an object id, or a part of one
    │   └── WrongTypeError                an id, but of another class
    ├── DuplicateTypeError                two classes with one type id
    ├── ClassDefinitionError (TypeError)  a mapped class that cannot work
    │   └── ManyToManyError               link rows that have no one shard
    ├── TopologyError                     a topology that cannot be used
    ├── TopologyUnavailableError          its source has none, or is gone
    ├── StaleTopologyError                not newer than the one in use
    ├── TopologyRefusedError              would lose what the one in use has
    ├── TopologyConflictError             somebody else has published
    ├── UnknownKeyspaceError              no such keyspace in the topology
    ├── UnknownShardError                 a shard that is not open
    ├── UnknownServerError                no such server in the topology
    ├── RoutingError
    │   ├── NoShardKeyError               the shards cannot be told
    │   ├── KeyspaceMismatchError         tables of two keyspaces
    │   ├── ScatterUnsupportedError       no correct merge over shards
    │   ├── ScatterDisabledError          scatter() is turned off
    │   ├── ScatterLimitError             too many shards, or rows
    │   └── UnsupportedStatementError     would give a wrong answer
    ├── ScatterTimeoutError               servers did not answer in time
    ├── ScatterFailedError                not one shard has answered
    ├── ServerUnreachableError (OperationalError)  a server is gone
    ├── ServerRetiredError                a server that left the topology
    ├── ServerFencedError (OperationalError)  a server is read-only
    ├── ShardMovedError (OperationalError, ProgrammingError)  ask elsewhere
    ├── ShardMissingError (OperationalError, ProgrammingError)  not there
    ├── KeyUsedError                      a key of an earlier transaction
    ├── PlacementError                    no shard for a new object
    │   └── ColocationError               the parent's shard cannot be used
    ├── CrossShardWriteError              a second shard in a transaction
    ├── BlobError
    │   ├── BlobValueError (ValueError)   a value that a field cannot hold
    │   └── BlobTooLargeError             more bytes than the column holds
    ├── MappingError
    │   ├── InvalidMoveError (ValueError) neighbours that make no sense
    │   ├── InvalidSequenceError (ValueError)  not a position in a list
    │   ├── KeptMappingError              rows that another class keeps
    │   ├── SequenceExhaustedError        no room left for a position
    │   └── StaleListError                the list has changed meanwhile
    │       ├── MissingTargetError        not in the list
    │       └── StaleNeighbourError       neighbours gone or reversed
    ├── LookupTableError
    │   ├── InvalidKeyError (ValueError)  a value that cannot be a key
    │   ├── KeyTakenError                 a key of somebody else
    │   ├── ClaimLostError                a claim that has expired
    │   ├── KeyNotHeldError (LookupError) not a key of the object
    │   ├── KeyPendingError       committed, and a key is only claimed yet
    │   ├── LookupPolicyError             a row normalised in another way
    │   └── KeyspaceKindError             a lookup that is not on mod shards
    ├── ReferenceTableError
    │   ├── ReferenceWriteError           a session that would write it
    │   ├── ReferenceRowsError (ValueError)  rows that it cannot have
    │   ├── ReferenceSizeError            too many rows
    │   └── ReferenceIncompleteError      some shards were not written
    ├── OperationError
    │   ├── OperationDefinitionError (TypeError)  no operation can do so
    │   ├── OperationArgumentError (ValueError)  more than an intent holds
    │   └── UnknownOperationError (LookupError)  not defined in this process
    ├── CacheClassError (TypeError)       rows that cannot be cached
    ├── CachedFunctionError (TypeError)   what a function takes or returns
    ├── CachedWriteError                  a write that hides what it writes
    ├── CacheOptionError (ValueError)     a setting that makes no sense
    ├── CacheKeyError (ValueError)        not a key of memcached
    ├── CacheConfigError (ValueError)     a file that configures no cache
    ├── VerifyPositionError               a file of another run
    ├── ParameterValueError (ValueError)  a value that no server can hold
    ├── InvalidBookmarkError (ValueError) not a bookmark of this list
    ├── BookmarkKeyError (ValueError)     keys that cannot sign bookmarks
    ├── SchemaError
    │   ├── ReservedNameError             a table with a name of ours
    │   ├── SchemaSetupError              files for revisions, not written
    │   ├── SchemaOptionError (ValueError)  an option that cannot be used
    │   ├── DivergedRevisionsError        +1 of shards at several revisions
    │   ├── MigrationFailedError          some shards could not be changed
    │   ├── ProvisionError                databases that must not be made
    │   └── InDoubtError                  what was done cannot be told
    ├── StaleDataError (orm.exc.StaleDataError)
    ├── CommitUnknownError                COMMIT was sent, its answer lost
    ├── PartialCommitError                some servers committed, some not
    ├── RetriesExhaustedError             ``cluster.run`` gave up
    ├── ClusterClosedError                the cluster was closed
    ├── ForkedSessionError                a session begun before a fork
    ├── ConcurrentUseError (IllegalStateChangeError)
    │                                     a session of two threads or tasks
    ├── NoEventLoopError (RuntimeError)   an async session, and no event loop
    ├── DriftReferenceError               no shard to compare others with
    ├── MissingDriverError (ImportError)  a driver is not installed
    ├── MissingExtraError (ImportError)   a package of an extra is not
    ├── ExtensionSetupError               an extension that is not set up
    └── ServerProcessError                a test server did not start

and one warning::

    SAWarning (RuntimeWarning)
    └── UniquePerShardWarning           a constraint that shards can break
"""

from __future__ import annotations

from sqla_shard.exc.base import ShardError
from sqla_shard.exc.caching import CacheClassError
from sqla_shard.exc.caching import CacheConfigError
from sqla_shard.exc.caching import CachedFunctionError
from sqla_shard.exc.caching import CachedWriteError
from sqla_shard.exc.caching import CacheKeyError
from sqla_shard.exc.caching import CacheOptionError
from sqla_shard.exc.definitions import ClassDefinitionError
from sqla_shard.exc.definitions import DuplicateTypeError
from sqla_shard.exc.definitions import InvalidIdError
from sqla_shard.exc.definitions import ManyToManyError
from sqla_shard.exc.definitions import Problem
from sqla_shard.exc.definitions import TopologyError
from sqla_shard.exc.definitions import UniquePerShardWarning
from sqla_shard.exc.definitions import UnknownKeyspaceError
from sqla_shard.exc.definitions import UnknownServerError
from sqla_shard.exc.definitions import UnknownShardError
from sqla_shard.exc.definitions import WrongTypeError
from sqla_shard.exc.following import ServerRetiredError
from sqla_shard.exc.following import StaleTopologyError
from sqla_shard.exc.following import TopologyConflictError
from sqla_shard.exc.following import TopologyRefusedError
from sqla_shard.exc.following import TopologyUnavailableError
from sqla_shard.exc.intents import OperationArgumentError
from sqla_shard.exc.intents import OperationDefinitionError
from sqla_shard.exc.intents import OperationError
from sqla_shard.exc.intents import UnknownOperationError
from sqla_shard.exc.lists import BookmarkKeyError
from sqla_shard.exc.lists import InvalidBookmarkError
from sqla_shard.exc.lists import InvalidMoveError
from sqla_shard.exc.lists import InvalidSequenceError
from sqla_shard.exc.lists import KeptMappingError
from sqla_shard.exc.lists import MappingError
from sqla_shard.exc.lists import MissingTargetError
from sqla_shard.exc.lists import SequenceExhaustedError
from sqla_shard.exc.lists import StaleListError
from sqla_shard.exc.lists import StaleNeighbourError
from sqla_shard.exc.lookups import ClaimLostError
from sqla_shard.exc.lookups import InvalidKeyError
from sqla_shard.exc.lookups import KeyNotHeldError
from sqla_shard.exc.lookups import KeyPendingError
from sqla_shard.exc.lookups import KeyspaceKindError
from sqla_shard.exc.lookups import KeyTakenError
from sqla_shard.exc.lookups import LookupPolicyError
from sqla_shard.exc.lookups import LookupTableError
from sqla_shard.exc.moving import KeyUsedError
from sqla_shard.exc.moving import ServerFencedError
from sqla_shard.exc.moving import ShardMissingError
from sqla_shard.exc.moving import ShardMovedError
from sqla_shard.exc.objects import BlobError
from sqla_shard.exc.objects import BlobTooLargeError
from sqla_shard.exc.objects import BlobValueError
from sqla_shard.exc.objects import ColocationError
from sqla_shard.exc.objects import CrossShardWriteError
from sqla_shard.exc.objects import PlacementError
from sqla_shard.exc.objects import StaleDataError
from sqla_shard.exc.references import ReferenceIncompleteError
from sqla_shard.exc.references import ReferenceRowsError
from sqla_shard.exc.references import ReferenceSizeError
from sqla_shard.exc.references import ReferenceTableError
from sqla_shard.exc.references import ReferenceWriteError
from sqla_shard.exc.revisions import ReservedNameError
from sqla_shard.exc.revisions import SchemaSetupError
from sqla_shard.exc.running import ClusterClosedError
from sqla_shard.exc.running import CommitUnknownError
from sqla_shard.exc.running import ConcurrentUseError
from sqla_shard.exc.running import DriftReferenceError
from sqla_shard.exc.running import ExtensionSetupError
from sqla_shard.exc.running import ForkedSessionError
from sqla_shard.exc.running import MissingDriverError
from sqla_shard.exc.running import MissingExtraError
from sqla_shard.exc.running import NoEventLoopError
from sqla_shard.exc.running import PartialCommitError
from sqla_shard.exc.running import RetriesExhaustedError
from sqla_shard.exc.running import ServerProcessError
from sqla_shard.exc.running import WrittenShard
from sqla_shard.exc.scattering import ScatterDisabledError
from sqla_shard.exc.scattering import ScatterFailedError
from sqla_shard.exc.scattering import ScatterLimitError
from sqla_shard.exc.scattering import ScatterTimeoutError
from sqla_shard.exc.scattering import ServerUnreachableError
from sqla_shard.exc.schema import DivergedRevisionsError
from sqla_shard.exc.schema import InDoubtError
from sqla_shard.exc.schema import MigrationFailedError
from sqla_shard.exc.schema import ProvisionError
from sqla_shard.exc.schema import SchemaError
from sqla_shard.exc.schema import SchemaOptionError
from sqla_shard.exc.statements import KeyspaceMismatchError
from sqla_shard.exc.statements import NoShardKeyError
from sqla_shard.exc.statements import ParameterValueError
from sqla_shard.exc.statements import RoutingError
from sqla_shard.exc.statements import ScatterUnsupportedError
from sqla_shard.exc.statements import UnsupportedStatementError
from sqla_shard.exc.verifying import VerifyPositionError

__all__ = [
    "BlobError",
    "BlobTooLargeError",
    "BlobValueError",
    "BookmarkKeyError",
    "CacheClassError",
    "CacheConfigError",
    "CacheKeyError",
    "CacheOptionError",
    "CachedFunctionError",
    "CachedWriteError",
    "ClaimLostError",
    "ClassDefinitionError",
    "ClusterClosedError",
    "ColocationError",
    "CommitUnknownError",
    "ConcurrentUseError",
    "CrossShardWriteError",
    "DivergedRevisionsError",
    "DriftReferenceError",
    "DuplicateTypeError",
    "ExtensionSetupError",
    "ForkedSessionError",
    "InDoubtError",
    "InvalidBookmarkError",
    "InvalidIdError",
    "InvalidKeyError",
    "InvalidMoveError",
    "InvalidSequenceError",
    "KeptMappingError",
    "KeyNotHeldError",
    "KeyPendingError",
    "KeyTakenError",
    "KeyUsedError",
    "KeyspaceKindError",
    "KeyspaceMismatchError",
    "LookupPolicyError",
    "LookupTableError",
    "ManyToManyError",
    "MappingError",
    "MigrationFailedError",
    "MissingDriverError",
    "MissingExtraError",
    "MissingTargetError",
    "NoEventLoopError",
    "NoShardKeyError",
    "OperationArgumentError",
    "OperationDefinitionError",
    "OperationError",
    "ParameterValueError",
    "PartialCommitError",
    "PlacementError",
    "Problem",
    "ProvisionError",
    "ReferenceIncompleteError",
    "ReferenceRowsError",
    "ReferenceSizeError",
    "ReferenceTableError",
    "ReferenceWriteError",
    "ReservedNameError",
    "RetriesExhaustedError",
    "RoutingError",
    "ScatterDisabledError",
    "ScatterFailedError",
    "ScatterLimitError",
    "ScatterTimeoutError",
    "ScatterUnsupportedError",
    "SchemaError",
    "SchemaOptionError",
    "SchemaSetupError",
    "SequenceExhaustedError",
    "ServerFencedError",
    "ServerProcessError",
    "ServerRetiredError",
    "ServerUnreachableError",
    "ShardError",
    "ShardMissingError",
    "ShardMovedError",
    "StaleDataError",
    "StaleListError",
    "StaleNeighbourError",
    "StaleTopologyError",
    "TopologyConflictError",
    "TopologyError",
    "TopologyRefusedError",
    "TopologyUnavailableError",
    "UniquePerShardWarning",
    "UnknownKeyspaceError",
    "UnknownOperationError",
    "UnknownServerError",
    "UnknownShardError",
    "UnsupportedStatementError",
    "VerifyPositionError",
    "WrittenShard",
    "WrongTypeError",
]
