"""Every refusal of the package has a remedy that is run."""

from __future__ import annotations

from sqla_shard import Cluster
from tests.models.remedy_models import Data, filled, REMEDIES
from tests.suites import remedy_classes
from tests.suites.refusal_sites import ELSEWHERE, Site, sites
from tests.suites.remedies import ALL, refusal
from tests.suites.remedy_classes import CLASSES

cluster = REMEDIES.on_sqlite()
data = filled()


def test_every_refusal_has_a_remedy_that_is_run(cluster: Cluster, data: Data) -> None:
    messages = [remedy_classes.refusal(one) for one in CLASSES.values()]
    for case in ALL.values():
        with cluster.session() as session:
            messages.append(refusal(session, data, case))
    found = [str(s) for s in sites() if not any(map(s.wrote, messages))]
    known = [begin for listed in ELSEWHERE.values() for begin in listed]
    # Every new refusal needs a case, whose remedy is run.
    assert [one for one in found if not one.startswith(tuple(known))] == []
    # Refusals with a case are not listed any more.
    assert [k for k in known if not any(f.startswith(k) for f in found)] == []


def test_sites_are_found() -> None:
    assert len(sites()) > 200
    assert not Site("a.py", "{} cannot be told").wrote("x can be told")
    assert Site("a.py", "{} cannot be told").wrote("x cannot be told")
