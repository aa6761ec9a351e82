"""Operating a fleet: fail over, move, rebuild, verify, back up.

A fleet is a topology that can be changed, with the servers in it.  Every
operation is planned, checked, applied step by step with a journal, and
verified; see :mod:`sqla_shard.fleet.runner`.
"""

from __future__ import annotations

from sqla_shard.fleet.accounts import Account, Accounts
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.operation import FleetPlan, FleetStatus, Result
from sqla_shard.fleet.runner import apply, resume, status, undo

__all__ = [
    "Account",
    "Accounts",
    "Fleet",
    "FleetPlan",
    "FleetStatus",
    "Result",
    "apply",
    "resume",
    "status",
    "undo",
]
