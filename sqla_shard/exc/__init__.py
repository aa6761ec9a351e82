"""Every error that this package raises.

All of them descend from :class:`sqlalchemy.exc.SQLAlchemyError`, so that a
handler written for SQLAlchemy catches them too.  The message has the value and
the remedy; its parts are also attributes of the error.  All can be pickled,
and none is wrapped into a :class:`sqlalchemy.exc.StatementError` when a
statement raises it::

    ShardError
    ├── InvalidIdError (ValueError)       not an object id, or a part of one
    │   └── WrongTypeError                an id, but of another class
    ├── IdLayoutError (ValueError)        widths that ids cannot have
    ├── IdLayoutMismatchError             of a class and its keyspace
    ├── MissingIdError                    a new row that nothing gives an id
    ├── IdServiceError                    no ids from a service
    ├── LocalIdsExhaustedError            a row with too large a local id
    ├── DuplicateTypeError                two classes with one type id
    ├── ClassDefinitionError (TypeError)  a mapped class that cannot work
    │   └── ManyToManyError               link rows that have no one shard
    ├── TopologyError                     a topology that cannot be used
    ├── TopologyUnavailableError          the source has none, or is down
    ├── StaleTopologyError                not newer than the one in use
    ├── TopologyRefusedError              would lose shards of the one in use
    ├── TopologyConflictError             another process published
    ├── UnknownKeyspaceError              no such keyspace in the topology
    ├── UnknownShardError                 a shard that is not open
    ├── UnknownServerError                no such server in the topology
    ├── RoutingError
    │   ├── NoShardKeyError               no shard key found
    │   ├── KeyspaceMismatchError         tables of two keyspaces
    │   ├── ScatterUnsupportedError       no correct merge over shards
    │   ├── ScatterDisabledError          scatter() is turned off
    │   ├── ScatterLimitError             too many shards, or rows
    │   └── UnsupportedStatementError     would give a wrong answer
    ├── ScatterTimeoutError               servers did not respond in time
    ├── ScatterFailedError                none of the shards has responded
    ├── ServerUnreachableError (OperationalError)  a server is down
    ├── LoginFailedError (OperationalError)  a server refuses the account
    ├── UnkeyedReferenceError (OperationalError)  a key MySQL refuses
    ├── ServerRetiredError                a server that left the topology
    ├── ServerFencedError (OperationalError)  a server is read-only
    ├── ShardMovedError (OperationalError, ProgrammingError)  it moved
    ├── ShardMissingError (OperationalError, ProgrammingError)  it is missing
    ├── KeyUsedError                      a key of an earlier transaction
    ├── PlacementError                    no shard for a new object
    │   └── ColocationError               the parent's shard cannot be used
    ├── CrossShardWriteError              a second shard in a transaction
    ├── BlobError
    │   ├── BlobValueError (ValueError)   a value that a field cannot hold
    │   ├── BlobTooLargeError             more bytes than the column holds
    │   └── BlobCompressionError
    │       ├── UnreadableBlobError
    │       │   ├── DamagedBlobError      cannot be decompressed
    │       │   └── DictionaryNotFoundError  no shard has its dictionary
    │       └── DictionaryError           not trained, stored or used
    ├── MappingError
    │   ├── InvalidMoveError (ValueError) neighbours that are not valid
    │   ├── InvalidSequenceError (ValueError)  not a position in a list
    │   ├── KeptMappingError              a write to an inverse mapping
    │   ├── SequenceExhaustedError        no room left for a position
    │   └── StaleListError                the list has changed meanwhile
    │       ├── MissingTargetError        not in the list
    │       └── StaleNeighbourError       neighbours removed or reversed
    ├── LookupTableError
    │   ├── InvalidKeyError (ValueError)  a value that cannot be a key
    │   ├── KeyTakenError                 of another object
    │   ├── ClaimLostError                a claim that has expired
    │   ├── KeyNotHeldError (LookupError) not a key of the object
    │   ├── KeyPendingError       committed, but the key is only claimed
    │   └── LookupPolicyError             a row normalized in another way
    ├── ReferenceTableError
    │   ├── ReferenceWriteError           a write by a session
    │   ├── ReferenceRowsError (ValueError)  rows that are not valid for it
    │   ├── ReferenceSizeError            too many rows
    │   └── ReferenceIncompleteError      some shards were not written
    ├── OperationError
    │   ├── OperationDefinitionError (TypeError)  not a valid operation
    │   ├── OperationArgumentError (ValueError)  an argument not stored
    │   └── UnknownOperationError (LookupError)  not defined in this process
    ├── CacheClassError (TypeError)       rows that cannot be cached
    ├── CachedFunctionError (TypeError)   arguments that cannot be cached
    ├── CachedWriteError                  a write that cannot be invalidated
    ├── OptionError (ValueError)          a setting that is not valid
    ├── CacheKeyError (ValueError)        not a key of memcached
    ├── CacheConfigError (ValueError)     a file that is not valid
    ├── VerifyPositionError               a file of another run
    ├── ParameterValueError (ValueError)  a value that no server can hold
    ├── InvalidBookmarkError (ValueError) not a bookmark of this list
    ├── BookmarkKeyError (ValueError)     keys that cannot sign bookmarks
    ├── SchemaError
    │   ├── ReservedNameError             a table with a reserved name
    │   ├── SchemaOptionError (ValueError)  an option that cannot be used
    │   ├── DivergedRevisionsError        +1 of shards at several revisions
    │   ├── MigrationFailedError          some shards could not be changed
    │   ├── ProvisionError                databases that cannot be created
    │   └── InDoubtError                  an unknown effect
    ├── MigrateError
    │   ├── ConversionError               a function of a move fails
    │   ├── DeclarationError (ValueError)  does not fit the tables
    │   ├── MigrateSetupError (ValueError)  what does not fit a move
    │   ├── SideClosedError               a write on the wrong side of a move
    │   ├── StageChangedError             changed while a command ran
    │   ├── StageConflictError            another process changed the stage
    │   ├── StageRefusedError             a stage that may not follow
    │   ├── StageUnavailableError         the stage cannot be read
    │   └── UnclaimableRowError           a row refers to a missing one
    ├── FleetError
    │   ├── FleetSetupError               no account, or a program is missing
    │   ├── FleetServerError              a server refuses, or is silent
    │   ├── CopyFailedError               content was not copied
    │   ├── FleetLockedError              another operation is not finished
    │   ├── FleetLockLostError            another process has taken over
    │   ├── OperationRefusedError         checks have found problems
    │   ├── OperationFailedError          a step has failed
    │   ├── NoOperationError              nothing to resume or to undo
    │   ├── ApplierStoppedError           a standby that does not apply
    │   ├── UndoRefusedError              its topology is published
    │   ├── BackupFailedError             a backup is not complete
    │   ├── BackupNotFoundError           no finished backup of that name
    │   └── BackupDamagedError            files are not as written
    ├── JobError
    │   ├── TaskDefinitionError (TypeError)  not a valid task
    │   ├── UnknownTaskError (LookupError)  not defined in this process
    │   ├── JobArgumentError (ValueError)  an argument that is not stored
    │   ├── JobOptionError (ValueError)   an option that is not valid
    │   ├── JobTimeLimitError (TimeoutError)  a task that takes too long
    │   ├── JobClaimLostError             a claim that has expired
    │   ├── NoHealthyShardsError          no server takes a job
    │   └── UnsafeBinaryLogError          a binary log of statements
    ├── FollowError
    │   ├── FollowRefusedError (ValueError)  no such user or board
    │   ├── BlockedError                  blocked by the other user
    │   └── FeedStoreError                Redis does not respond
    ├── StaleDataError (orm.exc.StaleDataError)
    ├── CommitUnknownError                COMMIT was sent, its response lost
    ├── PartialCommitError                some servers committed, some not
    ├── RetriesExhaustedError             ``cluster.run`` gave up
    ├── ClusterClosedError                the cluster was closed
    ├── ForkedSessionError                a session from before a fork
    ├── ConcurrentUseError (IllegalStateChangeError)
    │                                     a session in two threads or tasks
    ├── NoEventLoopError (RuntimeError)   an async session, and no event loop
    ├── MissingDriverError (ImportError)  a driver is not installed
    ├── MissingExtraError (ImportError)   a package of an extra is not
    ├── ExtensionSetupError               an extension that is not set up
    ├── StatementTextError (ValueError)   a text that is not a statement
    ├── EncryptedStatementsError          a proxy of a test, and TLS
    └── ServerProcessError                a test server did not start

and one warning::

    SAWarning (RuntimeWarning)
    └── UniquePerShardWarning           a constraint that shards can break

``base``         the base classes, and values in messages
``definitions``  ids, classes, objects, caches and lists
``topologies``   topologies: documents, names in them, publications
``statements``   statements, scatters, transactions and operations
``operations``   servers, moved shards and schema changes
``systems``      jobs, fleets, migrations, follow graphs and feeds
"""

from __future__ import annotations

from sqla_shard.exc import base
from sqla_shard.exc.base import ShardError as ShardError
from sqla_shard.exc.definitions import *  # noqa: F403
from sqla_shard.exc.operations import *  # noqa: F403
from sqla_shard.exc.statements import *  # noqa: F403
from sqla_shard.exc.systems import *  # noqa: F403
from sqla_shard.exc.topologies import *  # noqa: F403

# The classes of these modules, without the helpers that they import.  Type
# checkers, which cannot compute the list, take the lines above instead.
globals()["__all__"] = [
    name
    for name, value in globals().items()
    if getattr(value, "__module__", "").startswith(f"{__name__}.")
    and (value is ShardError or value.__module__ != base.__name__)
]
