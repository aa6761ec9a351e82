"""The microblog on one database, with Flask-SQLAlchemy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flask import Flask
from flask_wtf.csrf import CSRFProtect  # type: ignore[import-untyped]  # no stubs

from .models import db
from .views import pages

TEMPLATES = Path(__file__).parents[1] / "templates"


def create_app(**config: Any) -> Flask:
    """Return the application.

    :param config: of Flask; ``SECRET_KEY`` and ``SQLALCHEMY_DATABASE_URI``
        have to be among it.
    """
    app = Flask(__name__, template_folder=str(TEMPLATES))
    app.config.update(config)
    CSRFProtect(app)
    db.init_app(app)
    app.register_blueprint(pages)
    return app
