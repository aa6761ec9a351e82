"""Fetching the title of a web page that a user has named.

Users choose the address, and this machine may reach servers that they
cannot.  So only public addresses are connected to: the host is
resolved once, all its addresses are checked, and one of these is connected
to, after each redirect again.  An answer is bounded in time and in size.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from html.parser import HTMLParser
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import ip_address, ip_network, IPv4Address, IPv6Address
from threading import Event, Timer
from urllib.parse import quote, SplitResult, urldefrag, urljoin, urlsplit

from examples.pinboard.errors import InvalidInputError
from examples.pinboard.inputs import read_link

MAX_BYTES = 64 * 1024
"""Bytes of a page that are read; its title is in its first lines."""
MAX_REDIRECTS = 3
MAX_SECONDS = 10.0
"""Time for each of the answers, with its connection."""

_LATE = f"no complete answer in {MAX_SECONDS:g} seconds"
_REDIRECTS = frozenset([301, 302, 303, 307, 308])
_PORTS = {"http": 80, "https": 443}
_KINDS = frozenset(["text/html", "application/xhtml+xml"])
#: The IPv6 addresses of the Internet. Others are local, or stand for one of
#: IPv4, such as 64:ff9b::7f00:1.
_INTERNET = ip_network("2000::/3")
#: What older versions of Python do not know to be reserved: documentation,
#: relays of 6to4, and assignments of protocols.
_RESERVED = tuple(map(ip_network, ("3fff::/20", "192.88.99.0/24", "192.0.0.0/24")))
#: Python decodes more than encodings of text, such as "punycode".
_CHARSET = re.compile(
    r"utf-?8|us-ascii|(iso-8859|windows-125|koi8)-\w+|shift_jis|euc-(jp|kr)"
    r"|gb2312|gbk|gb18030|big5",
    re.IGNORECASE,
)
#: Bytes in which a page names its character set, as HTML demands.
_HEAD = 1024
_META = re.compile(rb"<meta\s[^>]*charset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)


class PageError(Exception):
    """Raised when a page cannot be fetched, or must not be.

    :ivar link: the link of the page, or that of a redirect.
    :ivar reason: what is wrong with it.
    """

    def __init__(self, link: str, reason: str) -> None:
        super().__init__(link, reason)
        self.link = link
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.link[:200]}: {self.reason}"


def page_title(link: str, allowed: Collection[str] = ()) -> str:
    """Return the title of a web page; "" if it has none.

    :param link: starts with ``http://`` or ``https://``.
    :param allowed: servers that may have an internal address, as
        ``host:port``.
    :raises PageError: when the page cannot be fetched, or its server is
        internal and not in ``allowed``.
    """
    for _ in range(MAX_REDIRECTS + 1):
        try:
            link = urldefrag(read_link(link)).url
        except InvalidInputError as error:
            raise PageError(link, error.message) from error
        with _answer(link, allowed) as answer:
            target = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or target is None:
                return _title(link, answer)
        try:
            link = urljoin(link, target)
        except ValueError as error:
            raise PageError(link, f"redirects to no link: {error}") from error
    raise PageError(link, f"more than {MAX_REDIRECTS} redirects")


def is_public(text: str) -> bool:
    """Return whether an IP address is public.

    Loopback, private, local, multicast and reserved addresses are not, nor are
    IPv6 addresses that stand for one of these in IPv4.
    """
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_public(address.ipv4_mapped)
        if address.sixtofour or address.teredo or address not in _INTERNET:
            return False
    return _is_public(address)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or any(address in network for network in _RESERVED)
    )


@contextmanager
def _answer(link: str, allowed: Collection[str]) -> Iterator[HTTPResponse]:
    """Send a request, and yield the answer until its time is over.

    :raises PageError: as :func:`page_title`.
    """
    parts = urlsplit(link)
    is_late = Event()
    try:
        with closing(_connected(link, parts, allowed)) as plain:
            # A server that sends a byte from time to time never exceeds the
            # timeout of a socket; this ends its handshake, too.
            timer = Timer(MAX_SECONDS, _hang_up, [plain, is_late])
            timer.daemon = True
            timer.start()
            try:
                with (
                    closing(_request(parts, plain)) as connection,
                    closing(connection.getresponse()) as answer,
                ):
                    yield answer
            finally:
                timer.cancel()
    # Pages of strangers: the parser asserts what it expects of declarations,
    # and the lengths of chunks may be negative.
    except (OSError, HTTPException, ValueError, AssertionError) as error:
        reason = f"{type(error).__name__}: {error}"
        if is_late.is_set() or isinstance(error, TimeoutError):
            reason = _LATE
        raise PageError(link, reason) from error
    if is_late.is_set():
        raise PageError(link, _LATE)


def _connected(
    link: str, parts: SplitResult, allowed: Collection[str]
) -> socket.socket:
    """Connect to an address that was checked.

    :raises PageError: when the server has an internal one.
    """
    host, port = str(parts.hostname), parts.port or _PORTS[parts.scheme]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(one[4][0]) for one in found]
    if f"{host}:{port}" not in allowed and not all(map(is_public, addresses)):
        raise PageError(link, "the address of this server is not public")
    # Not by its name: another look-up could have another result.
    return socket.create_connection((addresses[0], port), timeout=MAX_SECONDS)


def _hang_up(plain: socket.socket, is_late: Event) -> None:
    is_late.set()
    try:
        plain.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # It was closed at this moment.


def _request(parts: SplitResult, plain: socket.socket) -> HTTPConnection:
    host = str(parts.hostname)
    name = f"[{host}]" if ":" in host else host.encode("idna").decode()
    if parts.port not in (None, _PORTS[parts.scheme]):
        name = f"{name}:{parts.port}"
    # A socket of its own: wrapping one closes it, and _hang_up() needs it.
    used = plain.dup()
    connection = HTTPConnection(host, timeout=MAX_SECONDS)
    try:
        used.settimeout(MAX_SECONDS)
        if parts.scheme == "https":
            context = ssl.create_default_context()
            used = context.wrap_socket(used, server_hostname=host)
        connection.sock = used
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
        query = quote(parts.query, safe="/%:@!$&'()*+,;=~?")
        connection.request(
            "GET",
            f"{path}?{query}" if query else path,
            headers={
                "Host": name,
                "Accept": "text/html",
                "User-Agent": "sqla-shard-pinboard/1",
                "Connection": "close",
            },
        )
    except BaseException:
        used.close()
        raise
    return connection


def _title(link: str, answer: HTTPResponse) -> str:
    if answer.status != 200:
        raise PageError(link, f"status {answer.status}")
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise PageError(link, "an encoding that was not asked for")
    if answer.headers.get_content_type() not in _KINDS:
        return ""
    content = answer.read(MAX_BYTES)
    named = answer.headers.get_content_charset()
    if named is None and (found := _META.search(content[:_HEAD])):
        named = found[1].decode("ascii", "replace")
    if named is None or not _CHARSET.fullmatch(named):
        named = "utf-8"
    try:
        text = content.decode(named, "replace")
    except LookupError:
        text = content.decode("utf-8", "replace")
    parser = _TitleParser()
    parser.feed(text)
    return parser.title


class _TitleParser(HTMLParser):
    """Finds the first title; those of pictures in the page follow it.

    :ivar title: the title, on one line; "" until it is complete.
    """

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self._parts: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a title, unless there is one."""
        if tag == "title" and not self.title:
            self._parts = []

    def handle_data(self, data: str) -> None:
        """Add text to the title that is open."""
        if self._parts is not None:
            self._parts.append(data)

    def handle_endtag(self, tag: str) -> None:
        """End a title."""
        if tag == "title" and self._parts is not None:
            self.title = " ".join("".join(self._parts).split())
            self._parts = None
