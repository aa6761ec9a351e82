"""The application: its parts put together."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from flask import Flask

from examples.pinboard import answers, api, pages, panel, security, showing
from examples.pinboard.database import db
from examples.pinboard.lab.lab import Lab
from sqla_shard import Cluster


def create_app(
    cluster: Cluster,
    *,
    secret_key: str | bytes | None = None,
    testing: bool = False,
    hosts: Sequence[str] = ("127.0.0.1", "localhost"),
    lab: Lab | None = None,
) -> Flask:
    """Return the application for a cluster, whose tables exist.

    :param cluster: with a keyspace of objects and one of kind mod; the
        caller closes it.
    :param secret_key: signs the cookies; by default random, so that a
        restart signs everybody out.
    :param testing: let errors of the program pass to the test client.
    :param hosts: host names of the application; requests for others are
        refused, since a page of another site could resolve to our address.
    :param lab: the pages of the demo about sharding; not for production.
    """
    app = Flask(__name__)
    app.config.update(
        SECRET_KEY=secret_key or secrets.token_bytes(32),
        TESTING=testing,
        TRUSTED_HOSTS=list(hosts),
    )
    app.jinja_options["trim_blocks"] = True
    app.jinja_options["lstrip_blocks"] = True
    app.jinja_env.globals.update(
        current_user=security.current_user,
        has_cache=lambda: cluster.cache is not None,
        hue_of=showing.hue_of,
        lab=None,
        letter_of=showing.letter_of,
        pin_json=showing.pin_json,
    )
    security.protect(app)
    db.init_app(app, cluster)
    app.register_blueprint(pages.blueprint)
    app.register_blueprint(panel.blueprint)
    app.register_blueprint(api.blueprint)
    answers.register(app)
    if lab is not None:
        lab.install(app)
    return app
