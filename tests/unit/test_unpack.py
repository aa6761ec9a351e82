"""tests/unpack.sh, with an apt-get that has one package."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "unpack.sh"
APT_GET = r"""#!/bin/sh
case "$*" in
*indextargets*)
    for one; do
        case $one in *ORIGIN*) format=$one ;; esac
    done
    while read -r address origin; do
        echo "$format" |
            sed "s|\$(ORIGIN)|$origin|; s|\$(REPO_URI)|$address|"
    done <<END
http://backports Debian Backports
http://debian-security Debian
http://main Debian
END
    ;;
*update)
    echo update >>"$LOG"
    for one; do
        case $one in
        Dir::Etc::sourceparts=*) cat "${one#*=}/archive.sources" >>"$LOG" ;;
        esac
    done
    sleep 1 ;;
*install*) echo "Inst mysql-server-core" ;;
*download*) touch mysql-server-core.deb ;;
esac
"""
DPKG_DEB = r"""#!/bin/sh
mkdir -p "$3/usr/bin" "$3/usr/sbin" "$3/usr/lib/any"
touch "$3/usr/lib/any/ld-linux-any.so.2" "$3/usr/bin/mysql"
printf '\177ELF' >"$3/usr/sbin/mysqld"
"""

pytestmark = pytest.mark.skipif(
    shutil.which("flock") is None, reason="flock is of Linux"
)


def start(path: Path, folder: Path) -> subprocess.Popen[str]:
    for name, text in (("apt-get", APT_GET), ("dpkg-deb", DPKG_DEB)):
        if not (path / name).exists():
            (path / name).write_text(text)
            (path / name).chmod(0o755)
    return subprocess.Popen(
        ["/bin/sh", str(SCRIPT), "sid", str(folder), "mysql-server-core"],
        env={
            "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
            "LOG": str(path / "log"),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_at_once_in_a_folder_with_a_space(tmp_path):
    folder = tmp_path / "a folder" / "mysql"
    both = [start(tmp_path, folder) for _ in range(2)]
    for one in both:
        output, _ = one.communicate(timeout=60)
        assert one.returncode == 0, output
    assert {one.name for one in (folder / "bin").iterdir()} == {"mysql", "mysqld"}
    assert not folder.with_name("mysql.new").exists()
    log = (tmp_path / "log").read_text().splitlines()
    assert log.count("update") == 1
    # Neither those of backports nor of security.
    assert "URIs: http://main" in log


def test_one_that_is_ended_leaves_nothing(tmp_path):
    folder = tmp_path / "mysql"
    ended = start(tmp_path, folder)
    for _ in range(600):
        if (tmp_path / "log").exists():
            break
        time.sleep(0.1)
    ended.terminate()
    ended.communicate(timeout=60)
    assert ended.returncode
    assert not folder.exists()
    assert not folder.with_name("mysql.new").exists()
