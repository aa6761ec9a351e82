"""Rows that do not fit others: finding them, and putting them right.

What is on two shards is not committed as one, so an interruption can leave a
key without its object, or a row of a list without one.  This looks through
whole tables for that, beside a live application: it reads primaries in small
transactions, and slowly, if it is told to.

It knows nothing of what an application has in mind.  What is changed in
several transactions must not take longer than ``grace`` between two of them.

``findings``   what can be wrong with a row
``contract``   what a class of rows has to do to be looked through
``report``     what a run has come to
``position``   how far it is, in a file
``looking``    one run: the first look, the second, and repairs
``classes``    the classes whose rows are looked through
``objects``    the objects that rows lead to
``lookups``    keys of lookups and their objects
``relations``  rows of mappings, their objects, and their reverse
"""

from __future__ import annotations

from sqla_shard.verifying.findings import Finding
from sqla_shard.verifying.looking import VerifyProgress
from sqla_shard.verifying.lookups import delete_abandoned
from sqla_shard.verifying.lookups import open_claims
from sqla_shard.verifying.lookups import OpenClaim
from sqla_shard.verifying.lookups import verify_lookups
from sqla_shard.verifying.relations import verify_relations
from sqla_shard.verifying.report import Tally
from sqla_shard.verifying.report import UnreadShard
from sqla_shard.verifying.report import VerifyReport

__all__ = [
    "Finding",
    "OpenClaim",
    "Tally",
    "UnreadShard",
    "VerifyProgress",
    "VerifyReport",
    "delete_abandoned",
    "open_claims",
    "verify_lookups",
    "verify_relations",
]
