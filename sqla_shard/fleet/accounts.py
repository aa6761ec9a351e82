"""The accounts that fleet operations use on the servers.

The URLs of a topology have the account of the application, which cannot stop
a server from being written.  Operations connect to the same addresses with
an operator account; standbys connect to their primary with a replication
account.  Neither is part of a topology: the passwords come from environment
variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import make_url
from sqlalchemy.engine import URL

from sqla_shard.exc import FleetSetupError

_OPERATOR = "SQLA_SHARD_OPERATOR"
_REPLICATION = "SQLA_SHARD_REPLICATION"


@dataclass(frozen=True, kw_only=True)
class Account:
    """A user of the servers, the same on all of them.

    :ivar user: name of the user.
    :ivar password: its password, which no message or document contains.
    """

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """The accounts of an operator.

    :ivar operator: account for all statements; its privileges are listed in
        the documentation of fleet operations.
    :ivar replication: account with which standbys connect to a primary; None
        if the operation attaches no standby.
    """

    operator: Account
    replication: Account | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Accounts:
        """Read ``SQLA_SHARD_OPERATOR_USER``, ``..._PASSWORD`` and so on.

        :param environ: such as ``os.environ``.
        :raises FleetSetupError: if the operator account is missing, or an
            account has a user but no password.
        """
        operator = _account(_OPERATOR, environ)
        if operator is None:
            raise FleetSetupError(
                f"{_OPERATOR}_USER is not set; set it and "
                f"{_OPERATOR}_PASSWORD to the account of the operator"
            )
        return cls(operator=operator, replication=_account(_REPLICATION, environ))

    @classmethod
    def if_set(cls, environ: Mapping[str, str]) -> Accounts | None:
        """Return the accounts as :meth:`from_environ`; None without a user.

        :raises FleetSetupError: if an account has a user but no password.
        """
        is_set = environ.get(f"{_OPERATOR}_USER")
        return cls.from_environ(environ) if is_set else None

    @property
    def users(self) -> frozenset[str]:
        """The names of the users."""
        accounts = filter(None, (self.operator, self.replication))
        return frozenset(account.user for account in accounts)

    def for_replication(self) -> Account:
        """Return the replication account.

        :raises FleetSetupError: if there is none.
        """
        if self.replication is None:
            raise FleetSetupError(
                f"{_REPLICATION}_USER is not set; set it and "
                f"{_REPLICATION}_PASSWORD to the account with which standbys "
                "connect to their primary"
            )
        return self.replication

    def url(self, text: str) -> URL:
        """Return the URL of a server with the account of the operator.

        :param text: URL of the topology; its TLS options are used.
        """
        return make_url(text).set(
            username=self.operator.user, password=self.operator.password
        )


def _account(prefix: str, environ: Mapping[str, str]) -> Account | None:
    user = environ.get(f"{prefix}_USER")
    if not user:
        return None
    password = environ.get(f"{prefix}_PASSWORD")
    if password is None:
        raise FleetSetupError(
            f"{prefix}_USER is set, but {prefix}_PASSWORD is not; set it, "
            "to an empty string if the account has no password"
        )
    return Account(user=user, password=password)
