"""Primaries that are lost in several ways: nothing acknowledged is lost.

With ``SQLA_SHARD_SOAK=1`` there are five rounds of each way, 20 in all.
"""

from __future__ import annotations

import os

import pytest

from tests.servers.fleet_dying import lose_primary

pytestmark = [pytest.mark.live, pytest.mark.thorough]

ROUNDS = 5 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 1


def rounds(kind, cause, tmp_path, request, say):
    seed = request.config.getoption("hypothesis_seed")
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = lose_primary(kind, cause, folder, f"{seed} {number}")
        say(
            f"{kind.name}, {cause}, seed {seed}, round {number + 1}: "
            f"{found.waited}; {len(found.lost)} lost; "
            f"stated: {found.statement}"
        )
        yield found


@pytest.mark.parametrize("cause", ["kill", "partition", "disk", "lag"])
def test_with_semi_sync_nothing_is_lost(server_kind, cause, tmp_path, request, say):
    for found in rounds(server_kind, cause, tmp_path, request, say):
        assert found.wrong == []
        assert found.statement.startswith("none: semi-sync was on")


def test_without_semi_sync_the_loss_is_unknown(server_kind, tmp_path, request, say):
    for found in rounds(server_kind, "async", tmp_path, request, say):
        assert found.statement.startswith("unknown: semi-sync was off")
        # So the statement is true, and a statement "none" would not be.
        assert found.lost
