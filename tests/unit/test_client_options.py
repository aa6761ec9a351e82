"""Clients of MariaDB and MySQL, whose programs have each other's names."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from sqla_shard.fleet.client_options import client_of, client_options

#: What the programs say; only one option names MariaDB everywhere.
SAYS = {
    "mariadb-binlog": ("Ver 3.5 for debian-linux-gnu", "MariaDB Corporation"),
    "mysqlbinlog": ("Ver 9.7.4 for Linux", "Oracle and/or its affiliates"),
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install programs, with the words of another one under a name."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def run(**programs):
        for name, words in programs.items():
            version, help_text = SAYS[words]
            program = tmp_path / name.replace("_", "-")
            program.write_text(
                "#!/bin/sh\n"
                f"[ $1 = --version ] && echo '{version}' && exit\n"
                f"echo '{help_text}'\n"
            )
            program.chmod(0o755)
        return tmp_path

    return run


def test_each_kind_of_server_has_its_own_client(install):
    folder = install(mariadb_binlog="mariadb-binlog", mysqlbinlog="mysqlbinlog")
    for is_mariadb, name in ((True, "mariadb-binlog"), (False, "mysqlbinlog")):
        path = client_of("mariadb-binlog", "mysqlbinlog", is_mariadb=is_mariadb)
        assert path == str(folder / name)


def test_a_client_of_mariadb_under_the_name_of_mysql(install):
    folder = install(mysqlbinlog="mariadb-binlog")
    assert client_of("mysqlbinlog", is_mariadb=False) is None
    path = client_of("mysqlbinlog", is_mariadb=True)
    assert path == str(folder / "mysqlbinlog")


def test_tls_options_are_those_of_the_client(install):
    folder = install(mariadb_binlog="mariadb-binlog", mysqlbinlog="mysqlbinlog")
    url = make_url("mysql://a:b@h/?ssl_ca=/ca.pem")
    texts = {
        name: client_options(url, {}, str(folder / name), has_texts=False)
        for name in SAYS
    }
    assert "ssl-verify-server-cert" in texts["mariadb-binlog"]
    assert "ssl-mode" not in texts["mariadb-binlog"]
    assert 'ssl-mode="VERIFY_IDENTITY"' in texts["mysqlbinlog"]
