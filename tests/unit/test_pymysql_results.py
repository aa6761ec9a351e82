"""Results of PyMySQL, read from the buffer as the driver itself reads them."""

from __future__ import annotations

import io
import itertools
import random
import struct
import sys

import pymysql
import pytest
from pymysql.constants import FIELD_TYPE
from pymysql.cursors import DictCursor

from sqla_shard.dialects.mysql import pymysql_connections
from sqla_shard.dialects.mysql.pymysql_connections import _class_of, Received
from sqla_shard.dialects.polling import PIPELINING

UTF8, BINARY = 45, 63
#: Types, character sets, and values; None is NULL.
COLUMNS = [
    (FIELD_TYPE.LONGLONG, BINARY, ["0", "-7", "241294492511762325", None]),
    (FIELD_TYPE.TINY, BINARY, ["0", "1", None]),
    (FIELD_TYPE.DOUBLE, BINARY, ["0.5", "-1e+300", "3", None]),
    (FIELD_TYPE.NEWDECIMAL, BINARY, ["1.50", "-99999999999999999999", None]),
    (
        FIELD_TYPE.TIMESTAMP,
        BINARY,
        [
            "2026-01-02 03:04:05",
            "2026-01-02 03:04:05.000700",
            "2026-01-02 03:04:05.5",
            "0000-00-00 00:00:00",
            "2026-02-00 00:00:00",
            None,
        ],
    ),
    (FIELD_TYPE.DATETIME, BINARY, ["9999-12-31 23:59:59.999999", None]),
    (FIELD_TYPE.DATE, BINARY, ["2026-01-02", "0000-00-00", None]),
    (FIELD_TYPE.TIME, BINARY, ["-838:59:59", "00:00:01.500000", None]),
    (FIELD_TYPE.VAR_STRING, UTF8, ["", "é", "a" * 250, "b" * 251, None]),
    (FIELD_TYPE.BLOB, UTF8, ["{}", "c" * 40_000, "d" * 70_000, None]),
    (FIELD_TYPE.BLOB, BINARY, ["", "\x00\xff", "e" * 65_536, None]),
    (FIELD_TYPE.JSON, BINARY, ['{"a":"é"}', None]),
    (FIELD_TYPE.BIT, BINARY, ["\x01", None]),
    (FIELD_TYPE.NULL, BINARY, [None]),
]
OK = b"\x00\x00\x00\x02\x00\x00\x00"
END = b"\xfe\x00\x00\x02\x00"
MORE = b"\xfe\x03\x00\x08\x00"
ERROR = b"\xff" + struct.pack("<H", 1317) + b"#70100interrupted"


class Arriving(io.RawIOBase):
    """A stream that arrives in pieces."""

    def __init__(self, data, sizes):
        self._data, self._sizes = data, sizes
        self._at = 0

    def readable(self):
        return True

    def readinto(self, buffer):
        part = self._data[self._at :][: min(self._sizes(), len(buffer))]
        self._at += len(part)
        buffer[: len(part)] = part
        return len(part)


class Socket:
    def settimeout(self, seconds):
        pass

    def gettimeout(self):
        return None

    def close(self):
        pass


def length_coded(value):
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes([size]) + value
    if size < 1 << 16:
        return b"\xfc" + struct.pack("<H", size) + value
    return b"\xfd" + struct.pack("<I", size)[:3] + value


def described(name, kind, charset, database):
    names = (b"def", database, b"t", b"pins", name, name)
    fixed = struct.pack("<HIBHBxx", charset, 1000, kind, 0, 6)
    return b"".join(map(length_coded, names)) + b"\x0c" + fixed


def row_of(values):
    return b"".join(length_coded(None if v is None else v.encode()) for v in values)


def packets(payloads, first=1):
    """Return packets, which are numbered."""
    return b"".join(
        struct.pack("<I", len(payload))[:3] + bytes([number & 0xFF]) + payload
        for number, payload in enumerate(payloads, first)
    )


def answer(chosen, rows, end=END, database=b"db00001"):
    """Return the packets of a result."""
    return [
        bytes([len(chosen)]),
        *(
            described(b"c%d" % i, kind, charset, database)
            for i, (kind, charset, _) in enumerate(chosen)
        ),
        END,
        *rows,
        end,
    ]


def connection(ours, data, sizes, **arguments):
    base = pymysql.connections.Connection
    kind = _class_of(base, True, PIPELINING) if ours else base
    made = kind(defer_connect=True, **arguments)
    file = io.BufferedReader(Arriving(data, sizes))
    made._rfile = Received(file) if ours else file
    made._sock = Socket()
    made._read_timeout = made._current_timeout = None
    made._next_seq_id = 1
    # A command was sent.
    made.awaits_response = True
    return made


def outcome(made):
    """Return all that can be seen of a result, or the error."""
    try:
        made._read_query_result()
    except Exception as error:
        return type(error), error.args, made._sock is None
    result = made._result
    return (
        result.rows,
        [list(map(type, row)) for row in result.rows or ()],
        result.description,
        result.affected_rows,
        result.warning_count,
        bool(result.has_next),
        [vars(field) for field in getattr(result, "fields", ())],
        made._next_seq_id,
    )


def both(data, seed=0, most=5000, turns=1, **arguments):
    """Return the outcomes of PyMySQL, and ours, for each result in turn."""
    found = []
    for ours in (False, True):
        sizes = random.Random(seed)
        made = connection(ours, data, lambda r=sizes: r.randint(1, most), **arguments)
        found.append([])
        for _ in range(turns):
            made._next_seq_id = 1
            found[-1].append(outcome(made))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_any_result_is_that_of_the_driver(seed):
    dice = random.Random(seed)
    data = b""
    for _ in range(3):
        # Columns of the second and third result may be known.
        chosen = dice.choices(COLUMNS, k=dice.randint(1, 6))
        rows = [
            row_of([dice.choice(values) for *_, values in chosen])
            for _ in range(dice.choice((0, 1, 3, 40)))
        ]
        database = dice.choice((b"db00001", b"db00002", b"d" * 300))
        end = dice.choice((END, MORE))
        data += packets(answer(chosen, rows, end, database))
    # At most ten thousand pieces.
    most = dice.choice((1, 300, 5000, 100_000)) + len(data) // 5000
    theirs, mine = both(data, seed, most, turns=3)
    assert mine == theirs
    assert [one[3] for one in mine] == [len(one[0]) for one in theirs]


TWO = [COLUMNS[0], COLUMNS[8]]
ROW = row_of(["7", "x"])


@pytest.mark.parametrize(
    "payloads",
    [
        answer(TWO, [ROW, ROW], ERROR),
        answer(TWO, [], ERROR),
        [b"\x02", ERROR],
        [ERROR],
        [OK],
        # A proxy may send fewer values than columns.
        answer(TWO, [ROW, row_of(["7"]), ROW]),
        answer(TWO, [ROW, ROW + b"\x01y"]),
        answer(TWO, [ROW, b"\x017\x20x"]),
        answer(TWO, [ROW, b"\x017\xff"]),
        answer(TWO, [ROW, b"\x017\xfc\x01"]),
        answer(TWO, [ROW, b"\x017\x02\xc3\x28"]),
        # A value that is too long for a row in one packet.
        answer(TWO[1:], [row_of(["f" * ((1 << 24) - 1 - 4)]), b"", ROW]),
    ],
)
@pytest.mark.parametrize("pieces", [1, 1000])
def test_an_unexpected_packet_is_read_by_the_driver(payloads, pieces):
    # The second time the columns are known.
    data = packets(answer(TWO, [ROW])) + packets(payloads)
    theirs, mine = both(data, 1, 2 * len(data) // pieces + 1, turns=2)
    assert mine == theirs


@pytest.mark.parametrize("cut", range(0, 300, 7))
def test_a_connection_that_ends_is_lost(cut):
    data = packets(answer(TWO, [ROW] * 24))
    assert len(data) > 290
    theirs, mine = both(packets(answer(TWO, [])) + data[:cut], turns=2)
    assert mine == theirs
    assert mine[1][0] is pymysql.err.OperationalError
    assert mine[1][1][0] == 2013


@pytest.mark.parametrize("wrong", range(9))
def test_a_packet_out_of_order_ends_the_connection(wrong):
    parts = answer(TWO, [ROW] * 4)
    assert len(parts) == 9
    data = packets(parts[:wrong]) + packets(parts[wrong:], wrong + 4)
    theirs, mine = both(packets(answer(TWO, [])) + data, turns=2)
    assert mine == theirs
    assert mine[1][0] is pymysql.err.InternalError
    assert mine[1][2]


def test_numbers_of_packets_begin_again():
    theirs, mine = both(packets(answer(TWO, [ROW] * 1000)), most=100_000)
    assert mine == theirs
    assert mine[0][3] == 1000


def test_converters_of_an_application_are_used():
    conv = {
        **pymysql.converters.conversions,
        FIELD_TYPE.LONGLONG: lambda text: f"<{text}>",
    }
    data = packets(answer(TWO, [ROW])) * 2
    theirs, mine = both(data, turns=2, conv=conv)
    assert mine == theirs
    assert mine[1][0] == (("<7>", "x"),)
    plain, _ = both(data, turns=2)
    assert plain[1][0] == ((7, "x"),)


def test_bytes_are_returned_without_unicode():
    data = packets(answer(TWO, [ROW])) * 2
    theirs, mine = both(data, turns=2, use_unicode=False)
    assert mine == theirs
    assert mine[1][0] == ((7, b"x"),)


def test_rows_as_dictionaries_have_the_names_of_columns():
    made = connection(True, packets(answer(TWO, [ROW])) * 2, lambda: 10_000)
    for _ in range(2):
        made._next_seq_id = 1
        made._read_query_result()
        cursor = DictCursor(made)
        cursor._do_get_result()
        cursor._executed = True
        assert cursor.fetchall() == [{"c0": 7, "c1": "x"}]


def test_a_long_value_does_not_stay_in_the_buffer():
    made = connection(
        True, packets(answer(TWO[1:], [row_of(["g" * 1_000_000])])), lambda: 1_000_000
    )
    made._read_query_result()
    assert made._result.rows == (("g" * 1_000_000,),)
    assert len(made._rfile.data) < 100_000


def test_rows_that_were_read_do_not_stay_in_the_buffer():
    data = packets(answer(TWO, [ROW] * 40))
    made = connection(True, data, lambda: 100_000)
    made._read_query_result()
    assert made._rfile.data == b""


@pytest.mark.parametrize("use_unicode", [True, False])
@pytest.mark.parametrize("column", COLUMNS)
def test_each_type_with_and_without_unicode(column, use_unicode):
    data = packets(answer([column], [row_of(column[2][:1])])) * 2
    theirs, mine = both(data, turns=2, use_unicode=use_unicode)
    assert mine[0] == theirs[0]
    # The driver cannot convert bytes to Decimal: the connection is lost.
    if not isinstance(theirs[0][0], type):
        assert mine[1] == theirs[1]


class Shouting:
    """A converter that cannot be hashed."""

    def __eq__(self, other):
        return self is other

    def __call__(self, text):
        return text.upper()


@pytest.mark.parametrize(
    ("convert", "text", "value"),
    [(Shouting(), "a", "A"), (int, "١٢", 12), (float, "٣", 3.0)],
)
def test_converters_of_an_application_are_called_with_text(convert, text, value):
    conv = {**pymysql.converters.conversions, FIELD_TYPE.VAR_STRING: convert}
    data = packets(answer(TWO[1:], [row_of([text])])) * 2
    theirs, mine = both(data, turns=2, conv=conv)
    assert mine == theirs
    assert mine[1][0] == ((value,),)


def test_a_result_while_the_file_is_that_of_the_driver():
    """As that of ``init_command``, which ``connect()`` executes."""
    made = connection(True, packets(answer(TWO, [ROW])), lambda: 10_000)
    made._rfile = made._rfile._file
    made._read_query_result()
    assert made._result.rows == ((7, "x"),)


@pytest.mark.parametrize(
    ("length", "size", "error"),
    [(250, 1, 2013), (250, 99, 0), (70_000, 5000, 0), (70_000, 9, 2013)],
)
def test_a_response_that_drips_ends(monkeypatch, length, size, error):
    clock = itertools.count()
    monkeypatch.setattr(pymysql_connections, "monotonic", lambda: next(clock))
    rows = [row_of(["x" * length])]
    chosen = [(FIELD_TYPE.VAR_STRING, UTF8, [])]
    made = connection(True, packets(answer(chosen, rows)), lambda: size)
    made._read_timeout = 9
    if error:
        with pytest.raises(pymysql.OperationalError, match="timed out") as got:
            made._read_query_result()
        assert got.value.args[0] == error
        assert not made.open
    else:
        made._read_query_result()
        assert made._result.rows == (("x" * length,),)


def test_numbers_are_written_in_one_call():
    connection = _class_of(pymysql.connections.Connection, False, PIPELINING)
    made = connection(defer_connect=True)
    made.server_status = 0
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    try:
        written = made.escape(-7)
    finally:
        sys.setprofile(None)
    assert written == "-7"
    assert seen.count("call") == 1
    assert [made.escape(one) for one in (True, 1.5, None, "a'b", b"c")] == [
        pymysql.connections.Connection.escape(made, one)
        for one in (True, 1.5, None, "a'b", b"c")
    ]


def test_numbers_are_written_by_the_encoder_of_the_application():
    connection = _class_of(pymysql.connections.Connection, False, PIPELINING)
    encoders = {**pymysql.converters.conversions, int: lambda value, _: f"+{value}"}
    made = connection(defer_connect=True, conv=encoders)
    assert made.escape(7, made.encoders) == "+7"
    # Without encoders PyMySQL 1.2.0 has its own.
    assert made.escape(7) == pymysql.connections.Connection.escape(made, 7)
    with pytest.raises(TypeError, match="no default type converter"):
        made.escape(7, {})
