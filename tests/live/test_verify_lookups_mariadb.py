"""Looking through lookups, on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import verify_lookups
from tests.shared import verify_racing
from tests.shared.verify_models import Account
from tests.shared.verify_models import AccountEmail
from tests.shared.verify_models import everything
from tests.shared.verify_models import plant
from tests.shared.verify_models import verified_on_mariadb

pytestmark = pytest.mark.live

tables, cluster = verified_on_mariadb("verify")


class TestTogether(verify_lookups.Together):
    pass


class TestRekeying(verify_lookups.Rekeying):
    pass


class TestRacing(verify_racing.Racing):
    pass


def test_an_object_that_is_not_committed_yet(cluster):
    # As between two of the COMMITs of cross_shard="ordered".
    with cluster.begin() as session:
        account = Account(email="slow@x.org")
        session.add(account)
        session.flush()
        plant(cluster, AccountEmail, "slow@x.org", account.id)
        report = verify_lookups.verify(cluster, repair=True)
        assert verify_lookups.counts(report) == {}
    assert len(everything(cluster)) == 2
    assert verify_lookups.counts(verify_lookups.verify(cluster)) == {}
