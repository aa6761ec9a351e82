"""Lookups: finding objects by something else than their id.

``normalization``  which keys are equal
``definition``     what happens when a lookup class is created
``keys``           from a key to its virtual shard
``statements``     the SQL of a class
``reading``        from keys to ids
``claiming``       keys that belong to one object alone
``holding``        the keys of an object: giving, taking and renaming
``steps``          transactions one after another
``calls``          what follows the COMMIT of a registration
``registration``   an object and its keys, in several transactions
``mixin``          :class:`LookupMixin`
"""

from __future__ import annotations

from sqla_shard.lookup import normalization
from sqla_shard.lookup.claiming import Claim
from sqla_shard.lookup.mixin import LookupMixin
from sqla_shard.lookup.normalization import Normalization
from sqla_shard.lookup.registration import async_change
from sqla_shard.lookup.registration import async_sign_up
from sqla_shard.lookup.registration import change
from sqla_shard.lookup.registration import sign_up

__all__ = [
    "Claim",
    "LookupMixin",
    "Normalization",
    "async_change",
    "async_sign_up",
    "change",
    "normalization",
    "sign_up",
]
