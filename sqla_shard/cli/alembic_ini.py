"""The configuration file of alembic, for commands."""

from __future__ import annotations

import configparser
from os import PathLike

import click
from alembic.config import Config


def configurations(path: str | PathLike[str]) -> dict[str, Config]:
    """Return the configuration of each section with scripts of alembic.

    :param path: the file.
    :raises click.UsageError: if it is not a valid file.
    """
    parser = Config(str(path))
    try:
        names = [
            name
            for name in parser.file_config.sections()
            if parser.file_config.has_option(name, "script_location")
        ]
        for name in names:
            parser.file_config.items(name)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {_problem(error)}") from error
    return {name: Config(str(path), ini_section=name) for name in names}


def _problem(error: configparser.Error | UnicodeDecodeError) -> str:
    """Return what is wrong, and where.

    The messages of these errors contain lines of the file, which may have the
    password of a URL.
    """
    if isinstance(error, configparser.InterpolationError):
        return (
            f"option {error.option} of section [{error.section}] has a % that "
            "refers to no option; write %% for the character %"
        )
    if isinstance(error, configparser.DuplicateOptionError):
        return (
            f"line {error.lineno} has option {error.option} of section "
            f"[{error.section}] a second time; remove one"
        )
    if isinstance(error, configparser.DuplicateSectionError):
        return (
            f"line {error.lineno} has section [{error.section}] a second "
            "time; join both"
        )
    if isinstance(error, configparser.MissingSectionHeaderError):
        return (
            f"line {error.lineno} belongs to no section; begin the file with [alembic]"
        )
    if isinstance(error, configparser.ParsingError):
        # Some of its kinds have one line only.
        line = getattr(error, "lineno", None) or error.errors[0][0]
        return f"line {line} is neither [section] nor option = value; correct it"
    return "it is not text in UTF-8; convert it"
