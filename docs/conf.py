"""Configuration of Sphinx for ``make docs``.

Warnings are errors, and every name in ``:class:`...``` and the like has to
exist.  Names that have a place in the documentation become links.  Others,
of Python, of SQLAlchemy and of our own internals, are looked up by importing
them (:func:`_existing`) and stay plain text: intersphinx would link them, but
the build must not depend on the network.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import logging
import re
import subprocess
import sys
import warnings
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from docutils import nodes
from sqlalchemy.exc import SAWarning

ROOT = Path(__file__).parents[1]

# Sphinx shows what others log; alembic tells of each plugin that it loads.
logging.getLogger("alembic").setLevel(logging.WARNING)

project = "sqla_shard"
author = "the sqla_shard authors"
project_copyright = author
version = release = version_of("sqla-shard")

# The directive of docs/commands.py.
sys.path.insert(0, str(Path(__file__).parent))
extensions = ["commands", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build"]
highlight_language = "none"
nitpicky = True
# An alias for annotations only, which does not exist at run time.
nitpick_ignore = [("py:class", "AnyCluster")]

html_theme = "furo"
html_title = f"sqla_shard {release}"
html_show_sphinx = False
html_logo = "logo.svg"
html_favicon = "logo.svg"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1f5f99",
        "color-brand-content": "#1f5f99",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6fb1ec",
        "color-brand-content": "#6fb1ec",
    },
}
# Prompts are not copied, nor is what a program prints.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_selector = "div:not(.output) > div.highlight > pre"

# The pages are built without these where they are not installed: only the
# servers for tests need them.
autodoc_mock_imports = [
    name for name in ("pymysql", "pytest") if importlib.util.find_spec(name) is None
]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
# The signature shows the names; the types are with the parameters.
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

# Autodoc looks at the attributes of ObjectMixin, which is not mapped.
warnings.filterwarnings("ignore", "Unmanaged access", SAWarning)


def _existing(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Handle a reference that leads nowhere: let it pass if it exists."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip(".")
    module, cls = node.get("py:module"), node.get("py:class")
    scopes = ["builtins"]
    if module:
        scopes += [module, f"{module}.{cls}", module.rpartition(".")[0]]
    # A docstring is shown under the public name of what it describes; the
    # names in it are those of the module that it was written in.
    scopes += sorted(name for name in sys.modules if name in _OURS)
    names = [target, *(f"{scope}.{target}" for scope in scopes if scope)]
    return contnode if any(map(_is_there, names)) else None


_OURS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "sqla_shard").rglob("*.py")
}


def _is_there(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return hasattr(builtins, name)


def _unreleased(app: Any, docname: str, source: list[str]) -> None:
    """Put what is not released yet into the changelog."""
    if docname != "changelog" or not list(ROOT.glob("changelog.d/+*.rst")):
        return
    command = [sys.executable, "-m", "towncrier", "build", "--draft"]
    command += ["--version", "Not released yet", "--date", "changelog.d"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    mark = ".. towncrier release notes start\n"
    source[0] = source[0].replace(mark, done.stdout)


def _options_of_errors(app: Any, docname: str, source: list[str]) -> None:
    """Give the entries of the page on errors the options that all have."""
    if docname == "errors":
        options = r"\1   :no-members:\n   :show-inheritance:\n"
        entry = r"(\.\. autoexception:: \S+\n)(?! +:)"
        source[0] = re.sub(entry, options, source[0])


#: The first line of a list of modules: their names, and a gap.
_MODULES = re.compile(r"(?:``\w+/?``(?:, )?)+(?:  |\n)")


def _drawings(app: Any, doctree: Any, docname: str) -> None:
    """Wrap each drawing, so that it scrolls where the page is narrow."""
    for image in list(doctree.findall(nodes.image)):
        if image["uri"].endswith(".svg"):
            image.replace_self(nodes.container("", image.copy(), classes=["drawing"]))


def _without_modules(
    app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]
) -> None:
    """Leave out the modules of a folder, which readers of the source look for."""
    if what == "module" and hasattr(found, "__path__"):
        paragraphs = "\n".join(lines).split("\n\n")
        shown = [p for p in paragraphs if not _MODULES.match(p)]
        lines[:] = "\n\n".join(shown).split("\n")


def setup(app: Any) -> None:
    """Register what is ours."""
    app.connect("missing-reference", _existing)
    app.connect("source-read", _unreleased)
    app.connect("source-read", _options_of_errors)
    app.connect("autodoc-process-docstring", _without_modules)
    app.connect("doctree-resolved", _drawings)
