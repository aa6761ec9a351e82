"""URLs of servers: which are refused, and what of them is shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from sqlalchemy import make_url

from sqla_shard.exc import TopologyError
from sqla_shard.topology import redact, Server, ShardRange, Topology

ENVIRON = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "hunter2", "HOME": "/"}


def load(url: str) -> Server:
    document = {
        "epoch": 1,
        "keyspaces": {
            "main": {
                "kind": "global",
                "database": "main",
                "servers": [{"name": "a", "primary": url}],
            }
        },
    }
    topology = Topology.from_mapping(document, environ=ENVIRON)
    return topology.keyspace("main").servers[0]


def faults(url: str) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        load(url)
    for problem in caught.value.problems:
        assert problem.place == "keyspaces.main.servers[0].primary"
    return [problem.message for problem in caught.value.problems]


def check(url: str, *words: str) -> None:
    (message,) = faults(url)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "url",
    [
        "mysql://h",
        "mysql://h/",
        "mysql://h:1",
        "mysql://h:65535",
        "mysql://10.0.0.1:3306",
        "mysql://[::1]:3306",
        "mysql://[fe80::1%25eth0]",
        "mysql://user@h",
        "mysql://user:pass%40word@h-1.example.org",
        "mysql://user:pass/word:x@h",
        "mysql://user:pa$$word@h",
        "mysql://${MYSQL_USER}:${MYSQL_PASSWORD}@h",
        "mysql://x_${MYSQL_USER}:a${MYSQL_PASSWORD}b@h",
        "mysql+pymysql://h",
        "mariadb://h",
        "mariadb+mariadbconnector://h",
        "mysql://h?charset=utf8mb4&ssl_ca=/etc/ca.pem",
        "mysql://h/?charset=utf8mb4",
        "sqlite:///data/server1",
        "sqlite:////srv/data",
        "sqlite:///with blank/x",
        "sqlite:///.",
    ],
)
def test_good_urls_are_unchanged(url: str) -> None:
    assert load(url).primary == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:3306",
        "http://h",
        "postgresql://h",
        "MySQL://h",
        "mysql:/h",
        "mysql+://h",
        "mysql+a+b://h",
        "mysql2://h",
        "sqlite+pysqlite:///x",
        "sqlite",
        " mysql://h",
        "mysql://h?charset=b\nc",
    ],
)
def test_scheme(url: str) -> None:
    check(url, repr(url), "is not the URL of a server", "sqlite:///directory")


@pytest.mark.parametrize("url", ["mysql://h\x00", "mysql://h\n", "mysql://\t"])
def test_control_characters(url: str) -> None:
    check(url, "contains a control character", "remove it")


@pytest.mark.parametrize("url", ["mysql://", "mysql://:3306", "mysql://u@"])
def test_host_missing(url: str) -> None:
    check(url, "has no host", repr(url))


@pytest.mark.parametrize("host", ["a b", "a,b", "-a", "a.", "h#x", "ü", "a\\"])
def test_host_wrong(host: str) -> None:
    check(f"mysql://u@{host}", f"has the invalid host {host!r}", "letters, digits")


@pytest.mark.parametrize("host", ["::g", "1", "h"])
def test_ipv6_wrong(host: str) -> None:
    check(f"mysql://u@[{host}]", f"invalid IPv6 address, [{host}]")


@pytest.mark.parametrize("port", ["", "0", "65536", "1e3", "-1", "٣", "9" * 1000])
def test_port(port: str) -> None:
    check(f"mysql://h:{port}", "has an invalid port", "or omit it")


@pytest.mark.parametrize("path", ["db", "db00001", "a/b"])
def test_a_database(path: str) -> None:
    check(
        f"mysql://h:3306/{path}",
        f"'mysql://h:3306/{path}' names a database",
        "end the URL after the port",
    )


@pytest.mark.parametrize("option", ["user", "Password", "db", "unix_socket"])
def test_options_that_say_it_again(option: str) -> None:
    check(
        f"mysql://h?charset=utf8mb4&{option}=x",
        f"has the option {option!r}",
        "before the '?'",
    )


@pytest.mark.parametrize(
    "url",
    [
        "mysql://app:hun@ter2@h",
        "mysql://app:h/unter@2/hunter2@h",
        "mysql://app/x:hunter2@h",
        "mysql://app:x@[hunter2@h]",
        "mysql://app:x@h:hunter2@h",
        "mysql://app:x@h?hunter2@h",
        "mysql://app:@?hunter2@h",
    ],
)
def test_a_second_at_sign(url: str) -> None:
    check(url, "has an '@' after", "as %40, %3A")
    assert "unter" not in str(faults(url))
    assert "ter2" not in str(faults(url))


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://host/data",
        "sqlite://data",
        "sqlite://u:p@/data",
        "sqlite://:5/data",
        "sqlite:///data?mode=ro",
    ],
)
def test_sqlite_has_only_a_path(url: str) -> None:
    check(url, "has a host, a user or options", "sqlite:////absolute")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_sqlite_directory_missing(url: str) -> None:
    check(url, repr(url), "names no directory", "sqlite:///data/server1")


def test_sqlite_path_that_sqlalchemy_releases_read_differently() -> None:
    check("sqlite:///data%20x", "has a '%' in its path", "another directory")


class TestPlaceholders:
    @pytest.mark.parametrize(
        "url",
        [
            "mysql://${MYSQL_USER}@${MYSQL_PASSWORD}",
            "mysql://u@h:${MYSQL_USER}",
            "mysql://u@h/${MYSQL_USER}",
            "mysql://u@h?x=${MYSQL_USER}",
            "mysql://${MYSQL_USER}",
            "mysql://h$",
            "sqlite:///${MYSQL_USER}",
        ],
    )
    def test_outside_of_user_and_password(self, url: str) -> None:
        check(url, repr(url), "only in the user and the password")

    def test_for_the_whole_url(self) -> None:
        first, second = faults("${MYSQL_USER}")
        assert "is not the URL of a server" in first
        assert "only in the user and the password" in second

    @pytest.mark.parametrize("url", ["mysql://${HOME}:x@h", "mysql://x:${HOME}@h"])
    def test_of_a_name_that_is_not_allowed(self, url: str) -> None:
        check(
            url,
            "${HOME} is not a placeholder that this application allows",
            "(MYSQL_PASSWORD, MYSQL_USER)",
            "placeholders=",
        )

    @pytest.mark.parametrize(
        ("password", "character"),
        [
            ("$MYSQL_PASSWORD", 1),
            ("${}", 1),
            ("abc$", 4),
            ("$$$", 3),
            ("${MYSQL_PASSWORD", 1),
            ("${MYSQL-PASSWORD}", 1),
            ("${1}", 1),
            ("${ MYSQL_PASSWORD }", 1),
            ("%24x", 1),
        ],
    )
    def test_malformed(self, password: str, character: int) -> None:
        check(
            f"mysql://u:{password}@h",
            "in the password",
            f"the '$' at character {character} does not begin a ${{NAME}}",
            "$$ for a dollar sign",
        )

    def test_decoded_characters_are_checked_too(self) -> None:
        check("mysql://u:%24%7BHOME%7D@h", "${HOME} is not a placeholder")

    def test_without_a_value(self) -> None:
        document = {"s": {"range": [0, 1], "master": "h"}}
        with pytest.raises(TopologyError) as caught:
            Topology.from_mapping(document, environ={"MYSQL_USER": ""})
        (problem,) = caught.value.problems
        assert problem.message == (
            "in the password, ${MYSQL_PASSWORD} has no value: set the "
            "environment variable MYSQL_PASSWORD"
        )


class TestRedact:
    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("mysql://app:pw@h:3306", "mysql://app:***@h:3306"),
            ("mysql://app:${PW}@h", "mysql://app:${PW}@h"),
            ("mysql://app:${A}${B}@h", "mysql://app:${A}${B}@h"),
            ("mysql://app:x${PW}@h", "mysql://app:***@h"),
            ("mysql://app:$PW@h", "mysql://app:***@h"),
            ("mysql://${U}:pw@h", "mysql://${U}:***@h"),
            ("mysql://app:@h", "mysql://app:@h"),
            ("mysql://app@h", "mysql://app@h"),
            ("mysql://h:3306/db", "mysql://h:3306/db"),
            ("mysql://app:p/w@h", "mysql://app:***@h"),
            ("mysql://app:p@w@h", "mysql://app:***@h"),
            ("mysql://app:p://w@x@h", "mysql://app:***@h"),
            ("mysql://app:${PW}@w@h", "mysql://app:***@h"),
            ("mysql://app:${PW}@h?x=a@b", "mysql://app:***@b"),
            ("mysql://app:pw", "mysql://app:***"),
            ("app:pw@h", "app:***@h"),
            (":pw@h", ":***@h"),
            ("app:${PW}@h", "app:${PW}@h"),
            ("app@h", "app@h"),
            ("h:3306", "h:3306"),
            ("h", "h"),
            ("", ""),
            ("sqlite:///data", "sqlite:///data"),
            ("mysql://h?ssl=1&password=pw&x=1", "mysql://h?ssl=***&password=***&x=***"),
            ("mysql://h?ssl_passphrase=pw", "mysql://h?ssl_passphrase=***"),
        ],
    )
    def test_cases(self, url: str, shown: str) -> None:
        assert redact(url) == shown
        assert redact(shown) == shown

    @given(
        password=st.text(alphabet="/:@?#[]$% ab", max_size=12).map(
            lambda text: f"{text}hunter2"
        )
    )
    def test_no_password_is_shown_however_it_is_written(self, password: str) -> None:
        assert "hunter2" not in redact(f"mysql://app:{password}@h:3306")


def test_repr_of_a_server_shows_no_password() -> None:
    server = Server(
        name="a",
        primary="mysql://app:hunter2@h",
        standby="mysql://app:hunter2@i",
        shards=(ShardRange(0, 1),),
    )
    assert repr(server) == (
        "Server(name='a', primary='mysql://app:***@h', "
        "standby='mysql://app:***@i', "
        "shards=(ShardRange(first=0, last=1),), weight=1.0, generation=None)"
    )


_PART = st.text(alphabet="ab9.:/@?%[]$-+ &=", max_size=8)


@given(
    user=st.none() | _PART,
    password=st.none() | _PART,
    host=_PART,
    port=st.none() | _PART,
    rest=_PART,
)
@settings(max_examples=10 * settings().max_examples)  # few are accepted
def test_an_accepted_url_is_read_as_sqlalchemy_reads_it(
    user: str | None, password: str | None, host: str, port: str | None, rest: str
) -> None:
    login = "" if user is None else user
    login += "" if password is None else f":{password}"
    at = "" if user is None and password is None else "@"
    port = "" if port is None else f":{port}"
    url = f"mysql://{login}{at}{host}{port}{rest}"
    try:
        load(url)
    except TopologyError:
        return
    parsed = make_url(url)
    assert parsed.host
    assert not parsed.database
    assert parsed.port is None or 1 <= parsed.port <= 65_535
    assert "@" not in parsed.host
