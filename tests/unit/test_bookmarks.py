"""The parser of the quickstart: files of browsers, and refused files."""

from __future__ import annotations

import html
import io
import pickle
from datetime import datetime, UTC
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from examples.quickstart.bookmarks import (
    BookmarkError,
    Folder,
    MAX_DEPTH,
    MAX_TEXT,
    read_folders,
)

DOCTYPE = "<!DOCTYPE NETSCAPE-Bookmark-file-1>\n"

CHROME = """\
<!DOCTYPE NETSCAPE-Bookmark-file-1>
<!-- This is an automatically generated file.
     It will be read and overwritten.
     DO NOT EDIT! -->
<META HTTP-EQUIV="Content-Type" CONTENT="text/html; charset=UTF-8">
<TITLE>Bookmarks</TITLE>
<H1>Bookmarks</H1>
<DL><p>
    <DT><H3 ADD_DATE="1" LAST_MODIFIED="2" PERSONAL_TOOLBAR_FOLDER="true">\
Bookmarks bar</H3>
    <DL><p>
        <DT><A HREF="https://a.example/?x=1&copy=2" ADD_DATE="1700000037" \
ICON="data:image/png;base64,iVBOR/w0K==">A &amp; &lt;b&gt; &#39;c&#39;</A>
        <DT><H3 ADD_DATE="3">Empty</H3>
        <DL><p>
        </DL><p>
        <DT><A HREF="https://b.example/" ADD_DATE="0">B</A>
    </DL><p>
    <DT><A HREF="https://c.example/"></A>
</DL><p>
"""

FIREFOX = """\
<!DOCTYPE NETSCAPE-Bookmark-file-1>
<META HTTP-EQUIV="Content-Type" CONTENT="text/html; charset=UTF-8">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'self'; script-src 'none'; img-src data: *"></meta>
<TITLE>Bookmarks</TITLE>
<H1>Bookmarks Menu</H1>
<DD>Not of any folder
<DL><p>
    <DT><A HREF="place:sort=8&maxResults=10" QUERY="x">Recent</A>
    <DD>Not of any link
    <HR>    <DT><H3 ADD_DATE="1" UNFILED_BOOKMARKS_FOLDER="true">Other</H3>
    <DD>Add bookmarks
 to this folder
    <DL><p>
        <DT><A HREF="https://a.example/" ICON_URI="https://a.example/i.ico" \
LAST_CHARSET="UTF-8" SHORTCUTURL="a" TAGS="one, two ,,three">A</A>
        <DD>First line,
            second   line<BR>third
        <DT><A FEEDURL="https://a.example/feed">Feed</A>
        <DT><A HREF="https://b.example/">B</A>
    </DL><p>
</DL>
"""

SAFARI = """\
<!DOCTYPE NETSCAPE-Bookmark-file-1>
<HTML>
<META HTTP-EQUIV="Content-Type" CONTENT="text/html; charset=UTF-8">
<Title>Bookmarks</Title>
<H1>Bookmarks</H1>
<DT><H3 FOLDED>Favorites</H3>
<DL><p>
    <DT><A HREF="https://a.example/">A</A>
</DL><p>
<DT><H3 FOLDED>Menu</H3>
<DL><p>
</DL><p>
<DT><A HREF="https://b.example/">B</A>
</HTML>
"""

PINBOARD = """\
<!doctype netscape-bookmark-file-1>
<title>Pinboard Bookmarks</title>
<h1>Bookmarks</h1>
<dl><p><dt><a href='https://a.example/?x=1&amp;y=2' add_date="1700000000000"
 private="0" toread="0" tags="a,b">A</a>
<dd>About a.
</dt>
<dt><a href=https://b.example/ add_date="never">B
</dl></p>
"""


class Dribble(io.BytesIO):
    """Gives a few bytes at a time, as a slow pipe does."""

    def __init__(self, data: bytes, count: int) -> None:
        super().__init__(data)
        self.count = count

    def read(self, size: int | None = -1) -> bytes:
        return super().read(self.count)


def read(text: str | bytes, count: int = 1 << 30) -> list[Folder]:
    data = text.encode() if isinstance(text, str) else text
    return list(read_folders(Dribble(data, count)))


def shapes(folders: list[Folder]) -> list[Any]:
    return [
        (
            folder.path,
            folder.details,
            [
                (link.url, link.title, link.details, link.tags, link.added)
                for link in folder.links
            ],
        )
        for folder in folders
    ]


# -- what browsers write


@pytest.mark.parametrize("count", [1, 7, 1 << 30])
def test_chrome(count: int) -> None:
    empty, bar, root = read(CHROME, count)
    assert bar.path == ("Bookmarks bar",)
    assert bar.line == 9
    first, second = bar.links
    assert first.url == "https://a.example/?x=1&copy=2"
    assert first.title == "A & <b> 'c'"
    assert first.added == datetime(2023, 11, 14, 22, 13, 57, 0, UTC)
    assert first.line == 11
    assert (second.title, second.added) == ("B", None)
    assert (empty.path, empty.links) == (("Bookmarks bar", "Empty"), [])
    assert root.path == ()
    assert [(link.title, link.line) for link in root.links] == [("", 17)]


@pytest.mark.parametrize("count", [1, 7, 1 << 30])
def test_firefox(count: int) -> None:
    other, root = read(FIREFOX, count)
    assert (root.links, root.details) == ([], "")
    assert [(s.line, s.reason) for s in root.skipped] == [(9, "place: is no web page")]
    assert other.path == ("Other",)
    assert other.details == "Add bookmarks\nto this folder"
    first, second = other.links
    assert first.tags == ("one", "two", "three")
    assert first.details == "First line,\nsecond line\nthird"
    assert (second.title, second.details, second.tags) == ("B", "", ())
    assert [s.line for s in other.skipped] == [18]


@pytest.mark.parametrize("count", [1, 7, 1 << 30])
def test_safari_has_no_list_around_all(count: int) -> None:
    favorites, menu, root = read(SAFARI, count)
    assert [link.url for link in favorites.links] == ["https://a.example/"]
    assert (menu.path, menu.links) == (("Menu",), [])
    assert [link.url for link in root.links] == ["https://b.example/"]


@pytest.mark.parametrize("count", [1, 7, 1 << 30])
def test_lower_case_and_missing_ends(count: int) -> None:
    (root,) = read(PINBOARD, count)
    first, second = root.links
    assert first.url == "https://a.example/?x=1&y=2"
    assert first.details == "About a."
    assert first.tags == ("a", "b")
    # Counted in thousandths of a second.
    assert first.added == datetime(2023, 11, 14, 22, 13, 20, 0, UTC)
    assert (second.url, second.title) == ("https://b.example/", "B")
    assert second.added is None


def test_byte_order_mark_and_line_ends() -> None:
    text = CHROME.replace("\n", "\r\n")
    folders = read(b"\xef\xbb\xbf" + text.encode())
    assert shapes(folders) == shapes(read(CHROME))
    assert [f.line for f in folders] == [f.line for f in read(CHROME)]


def test_duplicates_are_all_there() -> None:
    link = '<DT><A HREF="https://a.example/">A</A>\n'
    (root,) = read(f"{DOCTYPE}<DL>{link * 3}</DL>")
    assert [link.line for link in root.links] == [2, 3, 4]


def test_folders_of_one_name_stay_apart() -> None:
    one = "<DT><H3>A</H3><DL></DL>"
    assert [f.path for f in read(f"{DOCTYPE}<DL>{one * 2}</DL>")] == [
        ("A",),
        ("A",),
        (),
    ]


def test_list_without_heading_belongs_to_the_folder_around_it() -> None:
    link = '<DT><A HREF="https://{}.example/">A</A>'
    text = f"<DL>{link.format('a')}<DL>{link.format('b')}</DL></DL>"
    (root,) = read(DOCTYPE + text)
    assert len(root.links) == 2


def test_heading_without_list_is_an_empty_folder() -> None:
    text = '<DL><H3>A<DT><H3>B</H3><DT><A HREF="https://c.example">C</A></DL>'
    a, b, root = read(DOCTYPE + text)
    assert (a.path, b.path, len(root.links)) == (("A",), ("B",), 1)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("javascript:alert('&lt;DL&gt;')", "javascript: is no web page"),
        ("JavaScript:void(0)", "javascript: is no web page"),
        ("data:text/html,<DL>", "data: is no web page"),
        ("place:type=6", "place: is no web page"),
        ("chrome://settings/", "chrome: is no web page"),
        ("file:///etc/passwd", "file: is no web page"),
        ("/relative", "not a whole address"),
        ("http://", "no host in the address"),
        ("https:path", "no host in the address"),
        ("http://[::1/", "not a valid address"),
        (f"https://a.example/{'x' * MAX_TEXT}", "more than 500,000 character"),
    ],
)
def test_other_links_than_web_pages_are_skipped(url: str, reason: str) -> None:
    text = f'<DL>\n<DT><A HREF="{url}">T</A>\n<DD>of none\n</DL>'
    (root,) = read(DOCTYPE + text)
    assert root.links == []
    (skipped,) = root.skipped
    assert skipped.line == 3
    assert skipped.reason.startswith(reason)


def test_descriptions_of_what_was_skipped_go_nowhere() -> None:
    link = '<DT><A HREF="https://a.example">A</A>\n'
    skipped = '<DT><A HREF="javascript:0">B</A>\n<DD>about B\n'
    folder = f"<DT><H3>C</H3><DL>{link}</DL><DD>of nothing\n"
    inner, root = read(f"{DOCTYPE}<DL>{link}{skipped}{folder}</DL><DD>x")
    details = [inner.details, root.details]
    details += [link.details for link in inner.links + root.links]
    assert details == ["", "", "", ""]


# -- refusals


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "no bookmark file"),
        ("<DL></DL>", 1, "no bookmark file"),
        ("\n\n<!DOCTYPE html>\n<DL></DL>", 3, "no bookmark file"),
        ("link,title\nhttps://a.example,A\n", 1, "no bookmark file"),
        ('{"children": []}', 1, "no bookmark file"),
        (DOCTYPE, 2, "without a list"),
        (f"{DOCTYPE}\n<A HREF='https://a.example'>A</A>\n", 4, "without a"),
        (f"{DOCTYPE}<DL>\n<DT><H3>A</H3>\n<DL>\n", 4, "not closed"),
        (f"{DOCTYPE}\n<DL>\n<DT><H3>A</H3>\n<DL>\n</DL>", 3, "not closed"),
        (f"{DOCTYPE}<DL>\n</DL>\n</DL>\n", 4, "has not begun"),
        (f"{DOCTYPE}<DL>\n<DT><A ADD_DATE=1>A</A></DL>", 3, "without HREF"),
        (f'{DOCTYPE}<DL>\n<DT><A HREF="">A</A></DL>', 3, "without HREF"),
        (f'{DOCTYPE}<DL>\n<A HREF="http://a>A\n<A HREF=""></DL>', 3, "quote"),
        (DOCTYPE + "<DL>\n" * 101, 102, f"more than {MAX_DEPTH} lists"),
        (f"{DOCTYPE}<DL>\n<H3>{'x' * 10_001}", 3, "10,000 characters"),
        (
            f"{DOCTYPE}<DL>\n<DD><A HREF='https://a.example'>{'x' * 500_001}",
            3,
            "500,000 characters",
        ),
    ],
)
@pytest.mark.parametrize("count", [3, 1 << 30])
def test_refused(text: str, line: int, reason: str, count: int) -> None:
    if len(text) > 10_000 and count == 3:
        count = 1 << 12  # it would take minutes
    with pytest.raises(BookmarkError, match=reason) as caught:
        read(text, count)
    assert caught.value.line == line
    assert str(caught.value) == f"line {caught.value.line}: " + (caught.value.reason)


@pytest.mark.parametrize("text", ["<![foo[ x", "<![ [", "<![CDATA[", "<!foo"])
def test_broken_declarations_are_refused(text: str) -> None:
    # With which reason depends on the version of Python.
    with pytest.raises(BookmarkError) as caught:
        read(f"{DOCTYPE}<DL>\n{text}\n</DL>")
    assert caught.value.line in (2, 3)


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (CHROME.encode("utf-16"), 1, "not UTF-8"),
        (CHROME.encode("utf-16-le"), 1, "binary data"),
        (CHROME.replace("B</A>", "\xdf</A>").encode("latin-1"), 15, "UTF-8"),
        (CHROME.encode() + b"\xe2\x82", 19, "not UTF-8"),
        (CHROME.encode() + b"\n\0", 20, "binary data"),
        (b"\x89PNG\r\n\x1a\n\0\0", 1, "not UTF-8"),
        (b"SQLite format 3\0", 1, "binary data"),
    ],
)
@pytest.mark.parametrize("count", [1, 1 << 30])
def test_refused_bytes(data: bytes, line: int, reason: str, count: int) -> None:
    # By its first line, where that comes before the bytes.
    with pytest.raises(BookmarkError) as caught:
        read(data, count)
    assert caught.value.line == line
    if count > 1:
        assert reason in caught.value.reason


def test_an_endless_tag_is_refused_in_time() -> None:
    text = f'{DOCTYPE}<DL>\n<DT><A HREF="' + "x" * 30_000_000
    with pytest.raises(BookmarkError, match="far too long") as caught:
        list(read_folders(io.BytesIO(text.encode())))
    assert caught.value.line == 3


def test_titles_inside_each_other_have_a_limit() -> None:
    text = f"<DL><H3>{'x' * 9_000}</H3><DL><H3>{'x' * 2_000}</H3><DL>"
    with pytest.raises(BookmarkError, match="10,000 characters"):
        read(DOCTYPE + text + "</DL>" * 3)


def test_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(BookmarkError(7, "is broken")))
    assert (error.line, error.reason) == (7, "is broken")
    assert str(error) == "line 7: is broken"


def test_folders_come_while_the_file_is_being_read() -> None:
    link = '<DT><A HREF="https://a.example/">A</A>\n'
    folder = f"<DT><H3>F</H3><DL>{link * 100}</DL>\n"
    file = io.BytesIO(f"{DOCTYPE}<DL>{folder * 400}</DL>".encode())
    folders = read_folders(file)
    assert len(next(folders).links) == 100
    assert file.tell() < len(file.getvalue()) / 5
    assert sum(len(folder.links) for folder in folders) == 39_900


# -- trees at random


def oneline(text: str) -> str:
    return " ".join(text.split())


LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TITLES = st.text(LETTERS).map(oneline) | st.sampled_from(
    ["&amp;", "</A>", "<DL>", "</DL>", "<!--", "<script>", "<![CDATA[", "&lt"]
)
DETAILS = st.lists(TITLES.filter(bool), max_size=3).map("\n".join)
PATHS = st.text(LETTERS, max_size=20).map(lambda s: "".join(s.split()))
URLS = st.builds(
    "{}://{}.example/{}{}".format,
    st.sampled_from(["http", "https", "HTTPS"]),
    st.sampled_from(["a", "www.b", "xn--4ca"]),
    PATHS,
    st.sampled_from(["", "?a=1&copy=2&lt", "#<b>", "?q='x'", '?q="x"', "&"]),
)
TAGS = st.lists(
    st.text(LETTERS).map(lambda s: oneline(s.replace(",", ""))).filter(bool)
)
TIMES = st.none() | st.integers(1, 4_000_000_000).map(
    lambda seconds: datetime.fromtimestamp(seconds, UTC)
)
LINKS = st.tuples(URLS, TITLES, DETAILS, TAGS.map(tuple), TIMES)
# A list of these is the content of a folder: links, and folders as
# (title, details, content).
ENTRIES = st.recursive(
    LINKS,
    lambda entries: st.tuples(TITLES, DETAILS, st.lists(entries | LINKS, max_size=4)),
    max_leaves=12,
)


def flat(
    content: list[Any], path: tuple[str, ...] = (), details: str = ""
) -> list[Any]:
    """Return the folders as the parser yields them: inner ones first."""
    found = []
    links = []
    for entry in content:
        if len(entry) == 3:
            found += flat(entry[2], (*path, entry[0]), entry[1])
        else:
            links.append(entry)
    return [*found, (path, details, links)]


class Style:
    """One of the ways to write an export."""

    def __init__(self, draw: Any) -> None:
        self.upper = draw(st.booleans())
        self.closes_terms = draw(st.booleans())
        self.extra = draw(st.sampled_from(["", ' ICON="data:,a&b<DL>"']))
        self.newline = draw(st.sampled_from(["\n", "\r\n", "\n    ", ""]))
        self.mark = draw(st.sampled_from(["", "\ufeff"]))
        self.escapes = draw(st.booleans())

    def tag(self, text: str) -> str:
        name, _, rest = text.partition(" ")
        name = name.upper() if self.upper else name.lower()
        return f"<{name} {rest}{self.extra}>" if rest else f"<{name}>"

    def url(self, url: str) -> str:
        if self.escapes or ";" in url:
            return html.escape(url)
        return url.replace('"', "&quot;")  # as browsers do

    def file(self, content: list[Any]) -> str:
        return f"{self.mark}{DOCTYPE}{self.terms(content)}"

    def terms(self, content: list[Any]) -> str:
        text = "".join(map(self.entry, content))
        return f"{self.tag('dl')}<p>{self.newline}{text}{self.tag('/dl')}<p>"

    def entry(self, entry: Any) -> str:
        if len(entry) == 3:
            title, details, content = entry
            head = f"{self.tag('h3 FOLDED')}{html.escape(title)}"
            head += self.tag("/h3")
        else:
            url, title, details, tags, added = entry
            attributes = f'a HREF="{self.url(url)}"'
            attributes += f' TAGS="{html.escape(", ".join(tags))}"'
            if added is not None:
                attributes += f' ADD_DATE="{int(added.timestamp())}"'
            head = f"{self.tag(attributes)}{html.escape(title)}"
            head += self.tag("/a")
        text: str = self.tag("dt") + head + self.newline
        if details:
            text += self.tag("dd") + html.escape(details) + self.newline
        if len(entry) == 3:
            text += self.terms(content)
        if self.closes_terms:
            text += self.tag("/dt")
        return text


@given(st.lists(ENTRIES, max_size=5), st.data(), st.integers(1, 100))
def test_any_tree_is_read_back(content: list[Any], data: Any, count: int) -> None:
    text = Style(data.draw).file(content)
    assert shapes(read(text, count)) == flat(content)


@given(st.lists(ENTRIES, max_size=3), st.data())
def test_a_file_that_was_cut_off_is_refused(content: list[Any], data: Any) -> None:
    whole = Style(data.draw).file(content).encode()
    end = whole.lower().rindex(b"</dl>") + 4
    cut = whole[: data.draw(st.integers(0, end))]
    with pytest.raises(BookmarkError):
        read(cut)


PIECES = (
    '<DL> </DL> <DT> <DD> <H3> </H3> </A> <p> <A HREF=> <A HREF=" " > '
    "<A HREF='https://a.example'> <!-- --> <![ <![CDATA[ ]]> <! <? & &# x "
    "<script> </script> <TITLE> </TITLE> <A </"
)
FRAGMENTS = st.sampled_from([*PIECES.split(" "), " ", "\n", "\r"])


@given(st.lists(FRAGMENTS | st.text(max_size=5)), st.integers(1, 50))
@example(["<![", "x", "[", ">"], 1)
def test_any_text_is_read_or_refused(pieces: list[str], count: int) -> None:
    text = DOCTYPE + "".join(pieces)
    lines = range(1, text.count("\n") + 2)
    folders: list[Folder] = []
    line = 1
    try:
        folders = read(text.encode("utf-8", "surrogatepass"), count)
    except BookmarkError as error:
        line = error.line
    assert line in lines
    # The folder for links outside of all folders always comes last.
    assert not folders or folders[-1].path == ()
    assert all(link.url for folder in folders for link in folder.links)
