"""Keys of lookups and their objects.

``kinds``     what can be wrong
``forms``     the forms of the keys that objects say they have
``mending``   putting keys right
``rows``      looking through the rows
``missing``   looking through the objects
``running``   :func:`verify_lookups` and :func:`delete_abandoned`
``claims``    :func:`open_claims`
"""

from __future__ import annotations

from sqla_shard.verifying.lookups.claims import claims_on_all
from sqla_shard.verifying.lookups.claims import open_claims
from sqla_shard.verifying.lookups.claims import OpenClaim
from sqla_shard.verifying.lookups.running import delete_abandoned
from sqla_shard.verifying.lookups.running import verify_lookups

__all__ = [
    "OpenClaim",
    "claims_on_all",
    "delete_abandoned",
    "open_claims",
    "verify_lookups",
]
