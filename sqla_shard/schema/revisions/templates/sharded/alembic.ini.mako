# Revisions for all virtual shards of a topology.  Each keyspace has its own
# revisions, and its own section in this file: alembic --name SECTION ...

[alembic]
script_location = ${script_location}
prepend_sys_path = .
path_separator = os
topology = %(here)s/topology.toml
keyspace = objects
# Plain revisions for MySQL or MariaDB; with true they run on SQLite as well.
# portable = true

# Alembic would log a line for each revision of each virtual shard; run_env()
# displays the progress instead.

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
