"""HTML pages and pictures: self-contained, safe against markup in texts, and accessible."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import read, run
from laws import examples
from palimpsest import Memory
from palimpsest.cli.markup import looks, shown, tag
from palimpsest.cli.seen import SHOWN, chosen_calls
from writer import quarters

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></svg></title><iframe src='https://example.com'></iframe>",
    "<!-- ]]> --> &lt;b&gt; &#x202e;",
    "{{7*7}} ${x} %s javascript:alert(1)",
    "\x1b[2J\x07\x00 \u202eolleh\u2066 \u200b\ufeff\u2028",
)
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f\ufeff]")
VOID = {"meta", "br"}
PLAIN = {
    *("html", "head", "body", "main", "meta", "title", "style", "h1", "h2", "p", "small", "b", "ul", "li", "div"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary", "dl", "dt", "dd", "pre", "code"),
    *("svg", "desc", "g", "rect", "path", "text"),
}


class Reader(HTMLParser):
    """Parses a page like a browser and checks that elements are closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def done(self) -> None:
        """Check that every element is closed."""
        self.close()
        assert self._open == []


def looked_at(page: str) -> Reader:
    """Read a page and check that it runs nothing, loads nothing and hides nothing."""
    reader = Reader()
    reader.feed(page)
    reader.done()
    assert reader.found <= PLAIN, reader.found - PLAIN
    for name, value in reader.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "href", "style", "srcdoc", "action")
        assert "//" not in value or (name, value) == ("xmlns", "http://www.w3.org/2000/svg")
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in reader.attributes
    assert "url(" not in page
    assert "@import" not in page
    assert STEERING.search(page) is None
    return reader


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The page and the picture of the demonstration."""
    folder = tmp_path_factory.mktemp("demo")
    result = run("demo", "--html", str(folder / "demo.html"), "--svg", str(folder / "demo.svg"))
    assert result.exit_code == 0, result.output
    return (folder / "demo.html").read_text("utf-8"), (folder / "demo.svg").read_text("utf-8")


# --- the demonstration


@pytest.mark.wide
def test_the_committed_picture_equals_the_commands_output(demo: tuple[str, str]) -> None:
    """The README's picture equals the output of `palimpsest demo --svg docs/demo.svg`."""
    assert demo[1] == (ROOT / "docs" / "demo.svg").read_text("utf-8")
    assert "(docs/demo.svg)" in (ROOT / "README.md").read_text("utf-8")


def test_a_picture_has_a_title_and_a_description(demo: tuple[str, str]) -> None:
    """The picture is well-formed XML with a title and a description that has every price."""
    root = ET.fromstring(demo[1])  # noqa: S314
    space = {"svg": "http://www.w3.org/2000/svg"}

    assert root.get("role") == "img"
    assert root.findtext("svg:title", namespaces=space)
    told = root.findtext("svg:desc", namespaces=space) or ""
    assert told.count("a month") == 4
    assert "script" not in demo[1]


def test_the_page_of_the_demo_is_self_contained(demo: tuple[str, str]) -> None:
    """The demonstration's page shows the four ways, every cut, each call, what was left out, and the early fact."""
    reader = looked_at(demo[0])
    words = " ".join(reader.words)

    for expected in (
        "send everything",
        "Palimpsest",
        "What the model saw",
        "evicted to the archive",
        "session.entry(7)",
    ):
        assert expected in words
    assert words.count("cut (high water)") == 2 * 12  # in the table, and at the calls
    assert len(demo[0]) < 1_000_000


# --- the page of a session


def fill(id: str = "talk") -> None:
    """Make a session of 20 answers, each asked for within 400 tokens."""
    with Memory.open("sqlite:///chats.db") as memory:
        session = memory.session(id, max_tokens=400, counter=quarters)
        for number in range(20):
            session.add_user_message(f"question {number} " + "words " * 20)
            session.context()
            session.add_assistant_message(f"answer {number}")


def page_of(id: str, *more: str) -> Reader:
    """Return the parsed page of a session."""
    result = run("context", id, "--max-tokens", "400", "--html", "-", *more)
    assert result.exit_code == 0, result.output
    return looked_at(result.stdout)


def test_a_page_has_every_call_and_every_cut(here: Path) -> None:
    """A page shows a call for each answer and the next one, and every cut of the history."""
    fill()

    words = " ".join(page_of("talk").words)

    cuts = [record["revision"] for record in read("history", "talk") if record["kind"] == "cut"]
    assert "21 calls sent" in words
    assert len(cuts) > 1
    for revision in cuts:
        assert f"revision {revision}:" in words
    assert "evicted to the archive" in words


def test_a_page_stores_nothing(here: Path) -> None:
    """Looking at a session leaves it as it was."""
    fill()
    before = read("history", "talk")

    page_of("talk", "--model", "gpt-4o")

    assert read("history", "talk") == before


def test_a_session_without_an_answer_has_a_page(chat: str, here: Path) -> None:
    """The page of a session without an answer shows the next call."""
    assert "1 call sent" in " ".join(page_of(chat).words)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_stored_text_never_becomes_markup(here: Path, hostile: str) -> None:
    """Ids, names, texts, arguments and results are shown letter by letter, and run nowhere."""
    printable = "".join(sign for sign in hostile if sign.isprintable())
    with Memory.open("sqlite:///chats.db") as memory:
        session = memory.session(printable, max_tokens=400, counter=quarters)
        for _ in range(12):
            session.add_user_message(hostile * 3, name=printable)
            session.add_tool_call("f", {printable: hostile}, call_id=printable)
            session.add_tool_result(printable, hostile)
            session.add_assistant_message(hostile)
            session.context()

    reader = page_of(printable, "--system", hostile.replace("\x00", ""))

    assert printable[:20].strip() in " ".join(reader.words)


def test_a_page_that_cannot_be_written_exits_with_1(chat: str) -> None:
    """A folder that is not there ends with 1, in one line."""
    result = run("context", chat, "--html", "no/such/page.html")

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no/such/page.html")


# --- laws


@given(st.text(), st.text())
@settings(max_examples=examples(100))
def test_any_text_is_escaped_and_read_back_equal(one: str, other: str) -> None:
    """Any text in an element or attribute is read back as the same text."""
    reader = Reader()
    reader.feed(tag("p", tag("b", one), other, title=other))
    reader.done()

    assert reader.found == {"p", "b"}
    assert STEERING.search(shown(one)) is None


@given(st.integers(1, 600), st.sets(st.integers(0, 599)))
def test_a_page_shows_a_bounded_number_of_calls_whole(calls: int, places: set[int]) -> None:
    """The first and the last are among them, and those around the first cuts; never many more than there is room."""
    cuts = sorted(place for place in places if place < calls)

    chosen = chosen_calls(calls, cuts)

    assert all(one < other for one, other in pairwise(chosen))
    assert {0, calls - 1} | set(cuts[: SHOWN // 2]) <= set(chosen) <= set(range(calls))
    assert len(chosen) <= SHOWN + 2


# --- contrast


def schemes() -> list[dict[str, str]]:
    """Return the colours on light and on dark paper."""
    light, dark = looks("colours").split("@media (prefers-color-scheme:dark)")
    return [dict(re.findall(r"--(\w+):(#\w+)", part)) for part in (light, dark)]


def luminance(colour: str) -> float:
    """Return a colour's luminance as WCAG 2 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_and_drawings_have_the_contrast_of_wcag(scheme: int) -> None:
    """Texts have a contrast of at least 4.5, drawings of 3, as WCAG 2 requires."""
    colours = schemes()[scheme]

    def contrast(name: str, behind: str) -> float:
        one, other = sorted((luminance(colours[name]), luminance(colours[behind])))
        return (other + 0.05) / (one + 0.05)

    for name in ("ink", "quiet", "cut"):
        assert min(contrast(name, "paper"), contrast(name, "wash")) >= 4.5
    for name in ("cached", "new"):
        assert contrast(name, "paper") >= 3
