"""Responses that are truncated, garbled, late, or for another request."""

from __future__ import annotations

import contextlib
import socket
import threading
from time import monotonic

import pytest

from sqla_shard import exc
from sqla_shard.cache.stores import Found, KeyState
from sqla_shard.cache.stores.memcached import MemcachedStore
from sqla_shard.cache.stores.memcached_node import parse_server, Stream

A, B = Found(KeyState.VALUE, b"hello"), Found(KeyState.VALUE, b"world")
GOOD = b"VALUE a 1 5\r\nhello\r\nVALUE b 1 5\r\nworld\r\nEND\r\n"
NONE = b"END\r\n"
OLD = b"HD t1000000 c7\r\n"
LEASED = b"STORED\r\nSTORED\r\n" + OLD
#: Of a node that does not answer, or not to the end.
TIMEOUT = 0.5
#: Of one that does: its threads may have to wait for their turn.
PATIENT = 20.0
#: In addition to the timeout, on a busy machine.
SLACK = 15.0
#: Says that the connection is to be closed.
CLOSE = object()


class FakeNode:
    """Answers the n-th question with the n-th of some answers.

    Each is bytes, or a list of bytes, :data:`CLOSE` and functions to call.
    Questions come one at a time, each in one piece.
    """

    def __init__(self, answers):
        self._answers = list(answers)
        self.asked = 0
        self.connections = 0
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    @property
    def address(self):
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _listen(self):
        while not self._ended.is_set():
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.connections += 1
            serving = threading.Thread(target=self._serve, args=(accepted,))
            serving.start()
            self._threads.append(serving)

    def _serve(self, accepted):
        accepted.settimeout(0.05)
        with accepted, contextlib.suppress(ConnectionError):
            while not self._ended.is_set():
                try:
                    question = accepted.recv(65_536)
                except TimeoutError:
                    continue
                if not question or not self._answer(accepted):
                    return

    def _answer(self, accepted):
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        for part in answer if isinstance(answer, list) else [answer]:
            if part is CLOSE:
                return False
            if callable(part):
                part(self._ended)
            else:
                accepted.sendall(part)
        return True

    def stop(self):
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
        self._listener.close()


@pytest.fixture
def node_of():
    with contextlib.ExitStack() as stack:

        def node_of(*answers, **options):
            node = FakeNode(answers)
            stack.callback(node.stop)
            options = {"timeout": PATIENT, "retry": 0.001, **options}
            store = MemcachedStore([node.address], **options)
            stack.callback(store.close)
            return node, store

        yield node_of


def fetch(store):
    start = monotonic()
    found = store.fetch(["a", "b"], 30)
    assert monotonic() - start < TIMEOUT + SLACK
    return found


def lost(found):
    return {one.state for one in found.values()} == {KeyState.LOST}


def later(ended):
    ended.wait(TIMEOUT * 1.5)


def test_good_answers(node_of):
    node, store = node_of(GOOD, NONE, LEASED)
    assert fetch(store) == {"a": A, "b": B}
    found = fetch(store)
    assert {one.state for one in found.values()} == {KeyState.LEASED}
    assert node.connections == 1


@pytest.mark.parametrize("size", range(1, 8))
def test_in_small_pieces(node_of, size):
    pieces = [GOOD[i : i + size] for i in range(0, len(GOOD), size)]
    _, store = node_of(pieces, [b"", b"EN", b"D\r\n"], LEASED)
    assert fetch(store) == {"a": A, "b": B}
    assert fetch(store)["b"].state is KeyState.LEASED


def test_values_cut_anywhere(node_of):
    cuts = range(len(GOOD))
    node, store = node_of(*([GOOD[:cut], CLOSE] for cut in cuts), GOOD)
    for _ in cuts:
        assert lost(fetch(store))
        _until_retried(store)
    assert fetch(store) == {"a": A, "b": B}
    assert node.connections == len(cuts) + 1


def test_leases_cut_anywhere(node_of):
    cuts = range(len(LEASED))
    answers = []
    for cut in cuts:
        answers += [NONE, [LEASED[:cut], CLOSE]]
    _, store = node_of(*answers, NONE, LEASED)
    for _ in cuts:
        assert lost(fetch(store))
        _until_retried(store)
    assert fetch(store)["a"].state is KeyState.LEASED


def _until_retried(store):
    (node,) = store._nodes
    # Its responses from now on are valid.
    node._timeout = PATIENT
    done = threading.Event()
    while monotonic() < node.breaker._skipped_until:
        done.wait(0.001)


#: The node seems to be about to go on.
ENDLESS = (
    b"VALUE a 1 99999999999999999999\r\nhello\r\nEND\r\n",
    b"VALUE a 1 1000000000\r\nhello\r\nEND\r\n",
    b"\0" * 1000,
)


@pytest.mark.parametrize(
    "answer",
    [
        *ENDLESS,
        b"VALUE z 1 5\r\nhello\r\nEND\r\n",
        b"VALUE a 1 4\r\nhello\r\nEND\r\n",
        b"VALUE a 1 6\r\nhello\r\nEND\r\n",
        b"VALUE a 1 -5\r\nhello\r\nEND\r\n",
        b"VALUE a 1 x\r\nhello\r\nEND\r\n",
        b"VALUE \xff 1 5\r\nhello\r\nEND\r\n",
        b"VALUE a 5\r\nhello\r\nEND\r\n",
        b"value a 1 5\r\nhello\r\nEND\r\n",
        GOOD + b"VALUE a 1 1\r\nx\r\n",
        GOOD + GOOD,
        b"ERROR\r\n",
        b"CLIENT_ERROR bad command line format\r\n",
        b"SERVER_ERROR out of memory writing get response\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\r\n",
    ],
)
def test_garbled_values(node_of, answer):
    timeout = TIMEOUT if answer in ENDLESS else PATIENT
    node, store = node_of(answer, GOOD, timeout=timeout)
    assert lost(fetch(store))
    _until_retried(store)
    assert fetch(store) == {"a": A, "b": B}
    assert node.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        LEASED.replace(b"STORED", b"EXISTS", 1),
        LEASED.replace(b"STORED", b"STORE", 1),
        LEASED.replace(b"STORED", b"stored", 1),
        LEASED.replace(b"STORED", b"STORED a", 1),
        LEASED.replace(b"STORED", b"VALUE a 1 5", 1),
        LEASED.replace(b"STORED", b"HD", 1),
        LEASED.replace(b"HD t1000000", b"HD"),
        LEASED.replace(b"HD t1000000", b"HD tx"),
        LEASED + b"HD\r\n",
        LEASED.replace(OLD, b"ERROR\r\n"),
        b"HD\r\n" + LEASED,
        b"ERROR\r\nERROR\r\nERROR\r\n",
        b"\r\n\r\n\r\n",
    ],
)
def test_garbled_leases(node_of, answer):
    node, store = node_of(NONE, answer, NONE, LEASED)
    assert lost(fetch(store))
    _until_retried(store)
    assert fetch(store)["a"].state is KeyState.LEASED
    assert node.connections == 2


def test_a_late_response_is_discarded(node_of):
    late = b"VALUE a 1 3\r\nold\r\nEND\r\n"
    _, store = node_of([later, late], GOOD, timeout=TIMEOUT)
    assert lost(fetch(store))
    _until_retried(store)
    assert fetch(store) == {"a": A, "b": B}


def test_an_unrequested_response_is_discarded(node_of):
    sent = threading.Event()

    def pause(ended):
        ended.wait(0.05)

    def done(ended):
        sent.set()

    late = b"VALUE a 1 3\r\nold\r\nEND\r\n"
    node, store = node_of([GOOD, pause, late, done], GOOD)
    assert fetch(store) == {"a": A, "b": B}
    assert sent.wait(60)
    assert fetch(store) == {"a": A, "b": B}
    assert node.connections == 2


@pytest.mark.parametrize("piece", [b"x", b"x" * 60_000])
def test_an_answer_without_an_end(node_of, piece):
    def wait(ended):
        ended.wait(0.01)

    _, store = node_of([piece, wait] * 500, GOOD, timeout=TIMEOUT)
    assert lost(fetch(store))


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("cache1", ("cache1", 11211)),
        ("cache1:11212", ("cache1", 11212)),
        ("127.0.0.1", ("127.0.0.1", 11211)),
        ("[::1]:11212", ("::1", 11212)),
        ("[::1]", ("::1", 11211)),
        ("::1", ("::1", 11211)),
        ("/run/memcached.sock", "/run/memcached.sock"),
    ],
)
def test_names_of_nodes(server, address):
    assert parse_server(server) == address


@pytest.mark.parametrize(
    "server", ["", ":", ":11211", "a:", "a:0", "a:65536", "a:b", "a:-1", "a:1٣"]
)
def test_invalid_names(server):
    with pytest.raises(exc.OptionError, match="write host:port"):
        parse_server(server)


@pytest.mark.parametrize("server", ["[::1", "[::1]x", "[]:11211", "[::1]:"])
def test_invalid_addresses_in_brackets(server):
    test_invalid_names(server)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"servers": []}, "servers="),
        ({"servers": "127.0.0.1:11211"}, "servers='127"),
        ({"servers": ["a:1", "a:1"]}, "different"),
        ({"longest": 0}, "longest=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"retry": -1}, "retry=-1"),
    ],
)
def test_settings_that_make_no_sense(options, match):
    with pytest.raises(exc.OptionError, match=match):
        MemcachedStore(**{"servers": ["127.0.0.1"], **options})


def test_no_tombstone_is_longer_than_the_longest(node_of):
    _, store = node_of(GOOD, longest=10)
    with pytest.raises(exc.OptionError, match="expire=11"):
        store.block(["a"], b"t" * 16, 11)


def test_all_processes_find_a_key_on_the_same_node():
    servers = [f"10.0.0.{i}" for i in range(1, 4)]
    store = MemcachedStore(servers)
    other = MemcachedStore(servers[::-1])
    keys = [f"key:{i}" for i in range(3000)]
    nodes = [store.node_of(key) for key in keys]
    assert nodes == [other.node_of(key) for key in keys]
    assert all(900 < nodes.count(name) < 1100 for name in servers)
    # The table must not change from release to release.
    assert [name[-1] for name in nodes[:12]] == list("213321322211")
    # An additional node takes its share of the keys; the rest do not move.
    more = MemcachedStore([*servers, "10.0.0.4"])
    moved = [
        key for key, node in zip(keys, nodes, strict=True) if more.node_of(key) != node
    ]
    assert {more.node_of(key) for key in moved} == {"10.0.0.4"}
    assert 600 < len(moved) < 900


STATS = b"STAT uptime 12\r\nSTAT bytes 34\r\nSTAT version 1.6 x\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        STATS + NONE,
        [STATS[:20], STATS[20:] + b"EN", b"D\r\n"],
        [bytes([byte]) for byte in STATS + NONE],
    ],
    ids=["whole", "parts", "bytes"],
)
def test_statistics_of_a_node(node_of, answer):
    node, store = node_of(answer)
    for _ in range(2):
        (found,) = store.stats()
        assert found.node == node.address
        assert found.answers
        assert (found.uptime, found.bytes, found.items) == (12, 34, None)
    assert node.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"ERROR\r\n",
        b"STAT\r\nEND\r\n",
        STATS,
        STATS + b"VALUE a 1 5\r\nhello\r\nEND\r\n",
        STATS + NONE + b"STAT",
        STATS + NONE + NONE,
        [STATS, CLOSE],
        [later, STATS + NONE],
    ],
    ids=[
        "refused",
        "no name",
        "no end",
        "values",
        "more",
        "two ends",
        "closed",
        "late",
    ],
)
def test_missing_statistics_of_a_node(node_of, answer):
    _, store = node_of(answer, NONE, timeout=TIMEOUT)
    start = monotonic()
    (found,) = store.stats()
    assert not found.answers
    assert found.uptime is None
    assert monotonic() - start < TIMEOUT + SLACK


def test_invalid_numbers(node_of):
    _, store = node_of(b"STAT uptime -1\r\nSTAT bytes \r\n" + NONE)
    (found,) = store.stats()
    assert (found.answers, found.uptime, found.bytes) == (True, None, None)


def test_many_values_may_take_as_long_as_several_exchanges(node_of):
    # Four pauses take longer than the timeout, and one of them by far not.
    timeout = 2.0
    keys = [f"k{number}" for number in range(400)]
    values = [b"VALUE %s 1 1\r\nx\r\n" % key.encode() for key in keys]
    answer = []
    for start in range(0, len(values), 100):
        answer.append(b"".join(values[start : start + 100]))
        answer.append(lambda ended: ended.wait(timeout * 0.3))
    _, store = node_of([*answer, b"END\r\n"], timeout=timeout)
    found = store.fetch(keys, 0)
    assert {one.state for one in found.values()} == {KeyState.VALUE}


@pytest.mark.parametrize(
    "answer",
    [
        b"HD kz f1 c7\r\n",
        b"HD f1 c7\r\n",
        b"HD ka c7\r\n",
        b"HD ka f1\r\n",
        b"HD ka f1 c7\r\nEN\r\n",
        b"VA 1 ka f1 c7\r\nx\r\n",
        b"ERROR\r\n",
        [b"HD ka f1", CLOSE],
    ],
)
def test_malformed_answers_to_writers(node_of, answer):
    node, store = node_of(answer, b"EN\r\n", b"STORED\r\n", timeout=TIMEOUT)
    assert store.block(["a"], b"t" * 16, 60) == {"a"}
    _until_retried(store)
    assert store.block(["a"], b"t" * 16, 60) == set()
    assert node.connections == 2


def test_an_interrupted_response_is_discarded(node_of, monkeypatch):
    node, store = node_of(GOOD, GOOD)
    with monkeypatch.context() as patch:

        def interrupted(stream):
            raise KeyboardInterrupt

        patch.setattr(Stream, "line", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(store)
    assert fetch(store) == {"a": A, "b": B}
    assert node.connections == 2


def test_all_addresses_of_a_name_are_tried(node_of, monkeypatch):
    node, _ = node_of(GOOD)
    _, port = parse_server(node.address)
    # The first one refuses connections.
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
        for host in ("127.0.0.2", "127.0.0.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *hints, **more: found)
    store = MemcachedStore([f"cache1:{port}"], timeout=PATIENT)
    with contextlib.closing(store):
        assert fetch(store) == {"a": A, "b": B}
