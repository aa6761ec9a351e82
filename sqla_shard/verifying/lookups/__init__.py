"""Keys of lookups and their objects.

``kinds``     what can be wrong
``forms``     the forms of the keys that objects say they have
``mending``   putting keys right
``rows``      looking through the rows
``missing``   looking through the objects
``running``   :func:`verify_lookups` and :func:`delete_abandoned`
"""

from __future__ import annotations

from sqla_shard.verifying.lookups.running import delete_abandoned
from sqla_shard.verifying.lookups.running import verify_lookups

__all__ = ["delete_abandoned", "verify_lookups"]
