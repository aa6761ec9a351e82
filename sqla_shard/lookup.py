"""Public names of lookups: unique keys, sign-ups and changes of keys.

They are implemented in :mod:`sqla_shard.models`.
"""

from __future__ import annotations

from sqla_shard.models import normalization
from sqla_shard.models.claims import Claim
from sqla_shard.models.lookup_mixin import LookupMixin
from sqla_shard.models.normalization import Normalization
from sqla_shard.models.registration import async_change, async_sign_up, change, sign_up

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
