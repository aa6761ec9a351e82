"""Putting keys right, one at a time, beside a live application.

Each repair looks again under locks that hold until it has committed: on the
object first, where that matters, and then on the row.  So what it finds is
what it acts on, whatever others are doing.

What takes two transactions gives before it takes: interrupted between them,
it leaves a row too many, which the next run takes away.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from secrets import token_bytes
from typing import Any

from sqlalchemy import select

from sqla_shard.cluster import Cluster
from sqla_shard.dialects.sql import Moment
from sqla_shard.exc import InvalidKeyError
from sqla_shard.exc import KeyTakenError
from sqla_shard.exc import LookupPolicyError
from sqla_shard.lookup.claiming import claim
from sqla_shard.lookup.claiming import LIFETIME
from sqla_shard.lookup.claiming import locked
from sqla_shard.lookup.claiming import own
from sqla_shard.lookup.definition import TOKEN_BYTES
from sqla_shard.lookup.holding import add
from sqla_shard.lookup.keys import Form
from sqla_shard.lookup.keys import Table
from sqla_shard.lookup.statements import statements_of
from sqla_shard.session import ShardSession
from sqla_shard.verifying.findings import Finding
from sqla_shard.verifying.findings import Outcome
from sqla_shard.verifying.lookups import kinds
from sqla_shard.verifying.lookups.forms import forms_of
from sqla_shard.verifying.objects import Objects

__all__ = ["Mender"]


class _GoneError(Exception):
    """Rolls back what was done for a row that is not there any more."""


class Mender:
    """Puts the keys of one class right.

    :param cls: the lookup class.
    :param targets: its objects.
    :param keep: how long claims are left alone after their end.
    """

    def __init__(self, cls: Any, targets: Objects, keep: timedelta) -> None:
        self._cls = cls
        self._targets = targets
        self._keep = keep
        self._statements = statements_of(cls)
        self._ways = {
            kinds.DANGLING.name: self._delete_dangling,
            kinds.STALE.name: self._delete_stale,
            kinds.ABANDONED.name: self._delete_abandoned,
            kinds.MISSING.name: self._give,
            kinds.MISPLACED.name: self._move,
            kinds.OUTDATED.name: self._rewrite,
        }

    def mend(self, cluster: Cluster, finding: Finding) -> Outcome:
        """Put one row right; see ``Check``."""
        way = self._ways.get(finding.kind)
        if way is None:
            return Outcome.not_done(finding)
        try:
            mended = way(cluster, finding)
        except (_GoneError, LookupPolicyError):
            # Somebody has changed it since; the next run looks at that.
            return Outcome.gone()
        except InvalidKeyError as error:
            return self._left(finding, kinds.UNFIT.name, error.reason)
        except KeyTakenError as error:
            if error.target_id is None:
                if finding.kind == kinds.MISSING.name:
                    # Somebody signs up, perhaps for this very object.
                    return Outcome.gone()
                return self._left(
                    finding, finding.kind, f"claimed until {error.expires_at}"
                )
            return self._left(
                finding,
                kinds.CONFLICTING.name,
                f"{error.key!r} belongs to {error.target_id}",
            )
        return Outcome.done() if mended else Outcome.gone()

    def _left(self, finding: Finding, kind: str, detail: str) -> Outcome:
        return Outcome.not_done(replace(finding, kind=kind, detail=detail))

    # -- in one transaction

    def _delete_dangling(self, cluster: Cluster, finding: Finding) -> bool:
        return cluster.run(self._delete_if_gone, finding)

    def _delete_if_gone(self, session: ShardSession, finding: Finding) -> bool:
        # Locked before the object is looked for, or it could come, and its
        # key be confirmed, between the two.
        if self._locked(session, finding) is None:
            return False
        if not self._targets.is_gone(session, finding.row["target_id"]):
            return False
        return self._delete(session, finding)

    def _delete_stale(self, cluster: Cluster, finding: Finding) -> bool:
        return cluster.run(self._delete_unless_had, finding)

    def _delete_unless_had(
        self, session: ShardSession, finding: Finding
    ) -> bool:
        key = finding.row["key"]
        forms = self._forms_had(session, finding)
        if forms is None or any(key in texts for texts in forms.values()):
            return False
        if self._locked(session, finding) is None:
            return False
        return self._delete(session, finding)

    def _delete_abandoned(self, cluster: Cluster, finding: Finding) -> bool:
        return cluster.run(self._delete_claim, finding)

    def _delete_claim(self, session: ShardSession, finding: Finding) -> bool:
        row = self._locked(session, finding)
        if row is None or row.expires_at is None:
            return False
        place = self._place(session, finding)
        now = session.scalar(select(Moment()), bind_arguments={"place": place})
        assert now is not None  # noqa: S101  # a row, always
        if now - row.expires_at <= self._keep:
            return False
        # Named by its token and its end: whoever has confirmed it, or has
        # taken it over, keeps the key where there are no locks, too.
        result: Any = session.execute(
            self._statements.discard,
            {
                "the_key": row.key,
                "old_token": row.token,
                "old_end": row.expires_at,
            },
            bind_arguments={"place": place},
        )
        return bool(result.rowcount)

    def _give(self, cluster: Cluster, finding: Finding) -> bool:
        return cluster.run(self._give_if_wanted, finding)

    def _give_if_wanted(self, session: ShardSession, finding: Finding) -> bool:
        forms = self._forms_had(session, finding, active=True)
        key, target_id = finding.row["key"], finding.row["target_id"]
        if forms is None or key not in forms:
            return False
        self._add(Table(self._cls, session), key, target_id)
        return True

    def _add(self, table: Table, key: str, target_id: int) -> None:
        if table.definition.unique:
            claim(table, key, target_id, LIFETIME)
        else:
            add(table, key, target_id)

    # -- in two

    def _move(self, cluster: Cluster, finding: Finding) -> bool:
        cluster.run(self._copy, finding)
        return cluster.run(self._delete, finding)

    def _copy(self, session: ShardSession, finding: Finding) -> None:
        table = Table(self._cls, session)
        row = self._locked_with(table, finding, finding.row["key"])
        if row is None:
            raise _GoneError
        form = Form(text=row.key, label=row.policy)
        if not table.definition.unique:
            table.execute(
                form.text,
                self._statements.add,
                the_key=form.text,
                the_id=row.target_id,
                the_policy=form.label,
            )
            return
        there = locked(table, form.text)
        # That one may have been rewritten under a newer policy.
        if there is None or there.target_id != row.target_id:
            own(table, form, row.target_id, token_bytes(TOKEN_BYTES))

    def _rewrite(self, cluster: Cluster, finding: Finding) -> bool:
        if cluster.run(self._rewrite_or_copy, finding):
            return True
        if cluster.run(self._delete, finding):
            return True
        raise _GoneError

    def _rewrite_or_copy(
        self, session: ShardSession, finding: Finding
    ) -> bool:
        """Write a row under the present policy; tell whether that is all."""
        table = Table(self._cls, session)
        key = self._as_given(session, table, finding)
        form = table.form(key)
        text, target_id = finding.row["key"], finding.row["target_id"]
        row = self._locked_with(table, finding, form.text)
        if row is None or row.policy not in table.definition.labels[1:]:
            raise _GoneError
        if form.text != text:
            self._add(table, key, target_id)
            return False
        table.execute(
            text,
            self._statements.rewrite,
            the_key=text,
            the_id=target_id,
            the_policy=form.label,
        )
        return True

    def _as_given(
        self, session: ShardSession, table: Table, finding: Finding
    ) -> str:
        """Return the key of a row as it was before it was normalised.

        That is what the object has, where the class knows its field; else
        the row itself is all there is.
        """
        text: str = finding.row["key"]
        forms = self._forms_had(session, finding)
        if self._targets.field is None:
            return text
        for key, texts in (forms or {}).items():
            if text in texts:
                return key
        raise _GoneError

    # -- what all have in common

    def _forms_had(
        self, session: ShardSession, finding: Finding, *, active: bool = False
    ) -> dict[str, set[str]] | None:
        """Return the keys that an object has now, which is locked.

        :param active: whether an inactive one has none.
        :returns: the forms of each; None where there is no such object, or
            one whose keys say nothing.
        """
        if self._targets.field is None:
            return None
        one = self._targets.locked(session, finding.row["target_id"])
        if one is None or (active and not self._targets.is_active(one)):
            return None
        table = Table(self._cls, session)
        forms, unfit = forms_of(table, self._targets.keys_of(one))
        if unfit:
            return None
        return {key: {form.text for form in given} for key, given in forms}

    def _place(self, session: ShardSession, finding: Finding) -> Any:
        # Not where its key says: it may be on another shard.
        keyspace = session.places.keyspace(finding.keyspace, "mod")
        return session.places.place(keyspace, finding.shard_id)

    def _locked(self, session: ShardSession, finding: Finding) -> Any:
        """Return the row of a finding as it is now, locked; None for none."""
        target_id = finding.row["target_id"]
        statement = self._statements.held_locked
        parameters = {"the_key": finding.row["key"], "the_id": target_id}
        if target_id is None:
            statement = self._statements.locked
            del parameters["the_id"]
        row = session.execute(
            statement,
            parameters,
            bind_arguments={"place": self._place(session, finding)},
        ).one_or_none()
        if row is None or row.target_id != target_id:
            return None
        return row

    def _locked_with(self, table: Table, finding: Finding, text: str) -> Any:
        """Return the row of a finding, locked; where a key belongs, too.

        In the order of shards, as release() does: where a lock is on a
        whole file, each would wait for the other.
        """
        lock = partial(
            table.execute,
            text,
            self._statements.held_locked,
            the_key=text,
            the_id=finding.row["target_id"],
        )
        if table.shard_of(text) < finding.shard_id:
            lock().first()
            return self._locked(table.session, finding)
        row = self._locked(table.session, finding)
        if table.shard_of(text) > finding.shard_id:
            lock().first()
        return row

    def _delete(self, session: ShardSession, finding: Finding) -> bool:
        result: Any = session.execute(
            self._statements.delete,
            {
                "the_key": finding.row["key"],
                "the_id": finding.row["target_id"],
            },
            bind_arguments={"place": self._place(session, finding)},
        )
        return bool(result.rowcount)
