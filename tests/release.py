"""Build the packages of a tag, and try them in empty environments.

``make release TAG=v1.0`` needs the tag alone: its commit is cloned, and
other files of the directory are not published.  In ``dist/`` are then a
wheel and a source distribution, each of which was installed in a new virtual
environment, with the versions of ``requirements/demo.txt``, and has run the
program and an example there; and a bill of materials, which has the digests of
both and what that environment consists of.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

#: Prints the packages of an environment, also with a pip that has no "inspect"
#: of their licences.
_INSTALLED = """
import importlib.metadata, json
print(json.dumps([
    {
        "name": one.metadata["Name"],
        "version": one.version,
        "licence": one.metadata.get("License-Expression"),
    }
    for one in importlib.metadata.distributions()
]))
"""


class ReleaseError(Exception):
    """The tag cannot be released."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a program and return its output, or raise with it."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        line = " ".join(map(str, command))
        raise ReleaseError(f"failed: {line}\n{done.stdout}")
    return done.stdout


def check(source: Path, tag: str) -> None:
    """Compare a tag with the version and the changelog of its commit."""
    with open(source / "pyproject.toml", "rb") as file:
        version = tomllib.load(file)["project"]["version"]
    if tag != f"v{version}":
        raise ReleaseError(
            f"{tag} names version {version} of pyproject.toml; the tag of"
            f" that is v{version}"
        )
    fragments = sorted((source / "changelog.d").glob("+*.rst"))
    if fragments:
        raise ReleaseError(
            f"changelog.d has {len(fragments)} changes that no release names;"
            f" run: towncrier build --version {version}"
        )
    changelog = (source / "docs" / "changelog.rst").read_text("utf-8")
    if not re.search(rf"^{re.escape(version)} \(\d", changelog, re.MULTILINE):
        raise ReleaseError(
            f"docs/changelog.rst has no part on {version} with a date, as in:"
            f" {version} (2030-12-31)"
        )


def build(source: Path, directory: Path) -> list[Path]:
    run(*python("-m", "hatchling", "build", "-d", directory), cwd=source)
    found = sorted(directory.iterdir())
    if len(found) != 2:
        raise ReleaseError(f"not a wheel and a source distribution: {found}")
    return found


def python(*arguments: str | Path) -> list[str | Path]:
    return [sys.executable, *arguments]


def bill(packages: list[Path], installed: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a bill of materials in the format of CycloneDX.

    :param packages: the wheel and the source distribution.
    :param installed: what :data:`_INSTALLED` prints.
    """

    def component(metadata: dict[str, Any], **more: Any) -> dict[str, Any]:
        name = re.sub(r"[-_.]+", "-", metadata["name"]).lower()
        purl = f"pkg:pypi/{name}@{metadata['version']}"
        found = {
            "type": "library",
            "bom-ref": purl,
            "name": metadata["name"],
            "version": metadata["version"],
            "purl": purl,
            **more,
        }
        # Others name their licence in words of their own.
        if metadata["licence"]:
            found["licenses"] = [{"expression": metadata["licence"]}]
        return found

    found = {one["name"]: one for one in installed}
    files = [
        {
            "type": "file",
            "name": path.name,
            "hashes": [
                {"alg": "SHA-256", "content": sha256(path.read_bytes()).hexdigest()}
            ],
        }
        for path in packages
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(found.pop("sqla-shard"), components=files)},
        "components": [component(found[name]) for name in sorted(found)],
    }


def smoke(source: Path, packages: list[Path], directory: Path) -> dict[str, Any]:
    """Install each package in a new environment, and use it.

    :returns: the bill of materials of the packages.
    """
    environment = directory / "environment"
    run(*python("-m", "venv", environment))
    programs = environment / "bin"
    pip = (programs / "python", "-m", "pip", "--quiet")
    locked = source / "requirements" / "demo.txt"
    run(*pip, "install", "--require-hashes", "--requirement", locked)
    # Without the package of the source beside them.
    elsewhere = directory / "elsewhere"
    shutil.copytree(source / "examples", elsewhere / "examples")
    install = ("install", "--no-deps", "--no-build-isolation")
    for package in packages:
        run(*pip, *install, package)
        run(*pip, "check")
        run(programs / "sqla-shard", "--version", cwd=elsewhere)
        run(programs / "python", "-m", "examples.quickstart", cwd=elsewhere)
        found = json.loads(run(programs / "python", "-c", _INSTALLED, cwd=elsewhere))
        run(*pip, "uninstall", "--yes", "sqla-shard")
    tools = ("pip", "setuptools")
    return bill(packages, [one for one in found if one["name"] not in tools])


def release(tag: str, output: Path) -> None:
    """Build the packages of a tag, try them, and copy them to a directory."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source = directory / "source"
        run(
            *("git", "-c", "advice.detachedHead=false", "clone", "--quiet"),
            *("--depth", "1", "--branch", tag, ROOT.as_uri(), source),
        )
        check(source, tag)
        packages = build(source, directory / "dist")
        materials = directory / f"sqla_shard-{tag.removeprefix('v')}.cdx.json"
        found = smoke(source, packages, directory)
        materials.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        packages.append(materials)
        output.mkdir(exist_ok=True)
        for package in packages:
            shutil.copy(package, output)
            sys.stdout.write(f"release: {output / package.name}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", metavar="TAG", help="such as v1.0")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    if not options.tag:
        parser.error("TAG is missing, as in: make release TAG=v1.0")
    try:
        release(options.tag, options.output)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
