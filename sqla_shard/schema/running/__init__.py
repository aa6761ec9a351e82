"""Revisions on many virtual shards, in processes.

``ledger``   what is written down of a revision, in each database
``journal``  writing it, and going on after an interruption
``static_names``, ``static``  proving that all shards get the same statements
``applying`` one process, one shard after another
``workers``  the processes of all servers
``waves``    one shard first, then a wave, then all others
"""

from __future__ import annotations

from sqla_shard.schema.running.applying import Applier
from sqla_shard.schema.running.journal import Journal
from sqla_shard.schema.running.waves import check_target
from sqla_shard.schema.running.waves import run

__all__ = ["Applier", "Journal", "check_target", "run"]
