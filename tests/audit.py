"""Look for known vulnerabilities of the packages of requirements/.

The advisories are those of https://osv.dev, and pip-audit asks for them, of
the packages that this version of Python would get.  A service that cannot be
reached, or that does not know of a vulnerability that everybody knows of, has
said nothing: that is printed, and is no failure, since it says nothing of the
packages either.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import urllib.request
from typing import Any

OSV = "https://api.osv.dev/v1/query"
#: Flask of 2016, of which CVE-2018-1000656 and CVE-2023-30861 are known.
VULNERABLE = {"package": {"name": "flask", "ecosystem": "PyPI"}, "version": "0.12"}
TIMEOUT = 15.0


def find_silence(url: str) -> str | None:
    """Return why a service says nothing, or nothing if it answers."""
    request = urllib.request.Request(  # noqa: S310  # a URL of ours
        url, json.dumps(VULNERABLE).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(  # noqa: S310  # see above
            request, timeout=TIMEOUT
        ) as answer:
            found: Any = json.load(answer)
    except (OSError, ValueError) as error:
        return str(error)
    if isinstance(found, dict) and found.get("vulns"):
        return None
    return "it does not know of the vulnerabilities of Flask 0.12"


def audit(path: str, url: str) -> bool:
    """Print the known vulnerabilities of the packages in a file, if any."""
    sys.stdout.write(f"audit: {path}: ")
    sys.stdout.flush()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip_audit", "--progress-spinner", "off"),
            *("--strict", "--disable-pip", "--require-hashes"),
            *("--vulnerability-service", "osv", "--osv-url", url),
            *("--requirement", path),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    sys.stdout.write(
        "no known vulnerabilities\n"
        if done.returncode == 0
        else f"FAILED\n{done.stdout}"
    )
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", metavar="FILE")
    parser.add_argument("--osv-url", default=OSV)
    options = parser.parse_args()
    if silence := find_silence(options.osv_url):
        sys.stdout.write(
            f"make: NO AUDIT of the dependencies: {options.osv_url} says"
            f" nothing ({silence})\n"
        )
        return 0
    results = [audit(path, options.osv_url) for path in options.paths]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
