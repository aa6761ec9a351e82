"""Places that are searched for ZooKeeper and Java."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sqla_shard.testing import programs
from sqla_shard.testing.programs import find_zookeeper


@pytest.fixture
def home(tmp_path):
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    return java.parents[1]


@pytest.mark.parametrize("place", ["", "lib"])
def test_finds_an_unpacked_zookeeper(home, tmp_path, place):
    base = tmp_path / "zookeeper"
    folder = base / place
    folder.mkdir(parents=True)
    environ = {"JAVA_HOME": str(home), "SQLA_SHARD_ZOOKEEPER": str(base)}
    for name in ("zookeeper-3.8.4.jar", "netty-codec-4.1.jar"):
        (folder / name).touch()
        assert find_zookeeper(environ) is None
    (folder / "zookeeper-jute-3.8.4.jar").touch()
    found = find_zookeeper(environ)
    assert found is not None
    assert found.java == str(home / "bin" / "java")
    names = [path.rpartition("/")[2] for path in found.classpath.split(":")]
    assert names == [
        "netty-codec-4.1.jar",
        "zookeeper-3.8.4.jar",
        "zookeeper-jute-3.8.4.jar",
    ]


def test_chooses_among_the_jars_of_the_system(home, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_SYSTEM", tmp_path)
    environ = {"JAVA_HOME": str(home)}
    for name in ("zookeeper", "slf4j-api", "jetty9-server"):
        (tmp_path / f"{name}.jar").touch()
        assert find_zookeeper(environ) is None
    (tmp_path / "zookeeper-jute.jar").touch()
    found = find_zookeeper(environ)
    assert found is not None
    assert found.classpath.split(":") == [
        str(tmp_path / f"{name}.jar")
        for name in ("zookeeper", "zookeeper-jute", "slf4j-api")
    ]


def test_takes_java_from_the_path(home, tmp_path):
    (tmp_path / "zookeeper-jute.jar").touch()
    environ = {"SQLA_SHARD_ZOOKEEPER": str(tmp_path)}
    assert find_zookeeper(environ | {"PATH": str(tmp_path)}) is None
    found = find_zookeeper(environ | {"PATH": str(home / "bin")})
    assert found is not None
    assert found.java == str(home / "bin" / "java")


def test_the_servers_load_no_client():
    program = (
        "import sys\n"
        "from sqla_shard.testing import ZooKeeperEnsemble, ZooKeeperServer\n"
        "print({'kazoo', 'pymysql', 'pytest'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
