# Revisions of every virtual shard of a topology.  Each keyspace has revisions
# of its own, and a section of this file: alembic --name SECTION ...

[alembic]
script_location = ${script_location}
prepend_sys_path = .
path_separator = os
topology = %(here)s/topology.toml
keyspace = objects
# Plain revisions for MySQL or MariaDB; with true they run on SQLite as well.
# portable = true

# Alembic itself would say a line for each revision of each virtual shard;
# what runs where is shown in another way.

[loggers]
keys = root,alembic

[handlers]
keys = console

[formatters]
keys = generic

[logger_root]
level = WARNING
handlers = console
qualname =

[logger_alembic]
level = WARNING
handlers =
qualname = alembic

[handler_console]
class = StreamHandler
args = (sys.stderr,)
level = NOTSET
formatter = generic

[formatter_generic]
format = %(levelname)-5.5s [%(name)s] %(message)s
datefmt = %H:%M:%S
