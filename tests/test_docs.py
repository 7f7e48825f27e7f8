"""Every example of README.md and docs/ runs.

`python` blocks of a page run in order and in one namespace, in an empty folder. In `console` blocks the lines that
begin with `$ palimpsest` run in the same folder, each in a process of its own, and output lines below one are compared
with what it prints; `...` stands for any text. What a block with a `title` shows is written to the file of this name.
A line with pipes or the like runs through a shell; for the others the command line is loaded once, and forked.
`<!-- not run: reason -->` on the line before a block opts it out.

Each page has a process of its own, and all of them run one after the other in one folder, with `-m slow` twice; this
file is also the script that runs pages (`python test_docs.py PAGE…`).
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>```+)(?P<language>\w*)(?P<more>[^\n]*)\n(?P<body>.*?)^(?P=indent)(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="([\w./-]+)"')
NOT_RUN = re.compile(r"<!-- not run: \S.*-->\s*\Z")
PROMPT = "$ "
PRELOADED = ["palimpsest.cli.app", "palimpsest.sessions.sync", "rich.console", "rich.table", "tiktoken"]
SHELL = frozenset("|<>$;&*?~#`")
"""What only a shell understands, where it is not quoted."""
# A shell function, so that documented lines may use pipes and redirections.
COMMAND = 'palimpsest() { "$PALIMPSEST_PYTHON" -c "from palimpsest.cli import main; main()" "$@"; }\n'


FIRST = ("README.md", "quickstart.md", "concepts.md", "sessions.md")
"""Pages whose examples a usual run tries, too."""

SERVED = {
    "mongodb.md": ("mongodb", "MONGODB_URL"),
    "postgres.md": ("postgres", "DATABASE_URL"),
    "redis.md": ("redis", "REDIS_URL"),
}
"""Pages whose examples need a server: of which kind, and by which variable they are told its address."""


class Block(NamedTuple):
    """A fenced block: `line` is the number of its first line inside the fence, counted from 1, `title` names a file."""

    language: str
    line: int
    body: str
    title: str = ""


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page that are to be run, in order."""
    for fence in FENCE.finditer(text):
        before = text[: fence.start()].removesuffix("\n").rpartition("\n")[2]
        named = TITLE.search(fence["more"])
        if (fence["language"] in {"python", "console"} or named) and not NOT_RUN.search(before):
            line = text.count("\n", 0, fence.start("body")) + 1
            title = named[1] if named is not None else ""
            yield Block(fence["language"], line, textwrap.dedent(fence["body"]), title)


def commands(block: Block) -> Iterator[tuple[int, str, str]]:
    """Yield line number, command line and expected output of what a console block runs."""
    lines = block.body.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(PROMPT)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = start
        while lines[last].endswith("\\") and last + 1 < end:
            last += 1
        command = "\n".join(lines[start : last + 1]).removeprefix(PROMPT)
        if command.split()[:1] == ["palimpsest"]:
            yield block.line + start, command, "\n".join(lines[last + 1 : end])


def tidy(text: str) -> str:
    """Strip what a reader does not see: spaces at the ends of lines, empty lines around the text."""
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()).strip("\n")


def looks_like(output: str, expected: str) -> bool:
    """Say whether `output` is as `expected` shows it, where `...` stands for any text."""
    pattern = ".*".join(re.escape(piece) for piece in tidy(expected).split("..."))
    return re.fullmatch(pattern, tidy(output), re.DOTALL) is not None


def run_command(where: str, command: str, expected: str) -> None:
    """Run one documented command; exit with what went wrong if it fails or prints something else."""
    environ = os.environ | {"PALIMPSEST_PYTHON": sys.executable, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    if SHELL.isdisjoint(command):
        code, output = run_forked(shlex.split(command.replace("\\\n", " ")), environ)
    else:
        shell = ["sh", "-c", COMMAND + command]
        ran = subprocess.run(shell, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        code, output = ran.returncode, ran.stdout.decode()
    if code:
        sys.exit(f"{where}: `{command}` ended with {code}\n{output}")
    if expected.strip() and not looks_like(output, expected):
        sys.exit(f"{where}: `{command}` printed\n{tidy(output)}\n\nthe page says\n{tidy(expected)}")


def run_forked(words: list[str], environ: dict[str, str]) -> tuple[int | None, str]:
    """How a process of the command line ended, and what it printed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryFile() as output:
        process = context.Process(target=be_command, args=(words, environ, DupFd(output.fileno())))
        process.start()
        process.join()
        output.seek(0)
        return process.exitcode, output.read().decode()


def be_command(words: list[str], environ: dict[str, str], output: Any) -> None:
    """Become the command line, started with these words."""
    from palimpsest.cli import main

    os.environ.clear()
    os.environ.update(environ)
    printed = output.detach()
    for stream in (1, 2):
        os.dup2(printed, stream)
    sys.argv = words
    main()


def run_page(page: Path, *, again: bool = False) -> None:
    """Run the examples of one page in the current folder, up to the first that fails.

    Who runs them `again` may be told otherwise by a command, such as that there is nothing new to import.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text("utf-8")):
        if block.title:
            path = Path(block.title)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body, "utf-8")
        elif block.language == "python":
            # Empty lines in front make a traceback name the line of the page.
            code = compile("\n" * (block.line - 1) + block.body, str(page), "exec", dont_inherit=True)
            exec(code, namespace)  # noqa: S102
        else:
            for line, command, expected in commands(block):
                run_command(f"{page}:{line}", command, "" if again else expected)


def run_pages(arguments: list[str]) -> None:
    """Run pages, each in a process of its own that begins with the library loaded; exit after one that fails."""
    if len(arguments) == 1:
        return run_page(Path(arguments[0]))
    for name in PRELOADED:
        importlib.import_module(name)
    for place, argument in enumerate(arguments):
        again = argument in arguments[:place]
        process = multiprocessing.get_context("fork").Process(
            target=run_page, args=(Path(argument),), kwargs={"again": again}
        )
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{argument} failed{', followed for the second time' * again}")
    return None


def served(*pages: Path) -> dict[str, str]:
    """Return the addresses of the servers that these pages need; skip the test if one, or a model, cannot be had."""
    import pytest  # the script that this file is needs none

    import servers  # as above

    if importlib.util.find_spec("wordllama") is None and any(
        '"wordllama"' in page.read_text("utf-8") for page in pages
    ):
        pytest.skip("wordllama is not installed: pip install -e '.[dev]' brings it where it has wheels")
    return {name: servers.address(kind) for page, (kind, name) in SERVED.items() if page in {one.name for one in pages}}


def run_apart(folder: Path, *pages: Path) -> subprocess.CompletedProcess[str]:
    """Run pages in a process of their own, in `folder`; a run that takes ten minutes is stuck."""
    script = [sys.executable, __file__, *map(str, pages)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PALIMPSEST_")}
    environ |= served(*pages)
    with tempfile.TemporaryDirectory() as place:  # examples leave files in folders for temporary ones
        environ["TMPDIR"] = place
        return subprocess.run(script, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=600)


def pytest_generate_tests(metafunc: Any) -> None:
    """Make a test of every page that has something to run; a usual run has those that people begin with."""
    import pytest  # the script that this file is needs none

    if "page" in metafunc.fixturenames:
        pages = [(page, () if page.name in FIRST else pytest.mark.wide) for page in runnable()]
        given = [pytest.param(page, marks=marks, id=str(page.relative_to(ROOT))) for page, marks in pages]
        metafunc.parametrize("page", given)
    if "times" in metafunc.fixturenames:  # marked here, as the script has no pytest
        metafunc.parametrize("times", [pytest.param(2, marks=pytest.mark.slow)])


def runnable() -> list[Path]:
    """The pages that have something to run, the first one first."""
    return [path for path in [ROOT / "README.md", *listed()] if any(blocks(path.read_text("utf-8")))]


def listed() -> list[Path]:
    """The pages of the site, in the order of its navigation."""
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    return [ROOT / "docs" / name for name in re.findall(r": ([\w/.-]+\.md)$", navigation, re.MULTILINE)]


def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Every example of a page runs as written."""
    ran = run_apart(tmp_path, page)

    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"


def test_all_pages_run_one_after_another_in_one_folder(times: int, tmp_path: Path) -> None:
    """Files that earlier pages, or an earlier run of the same page, left in the folder do not disturb a page."""
    pages = runnable() * times

    ran = run_apart(tmp_path, *pages)

    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"


def test_the_site_lists_every_page() -> None:
    """Every page is in the navigation, and decisions are in order."""
    assert sorted(listed()) == sorted(ROOT.glob("docs/**/*.md"))
    decisions = [page for page in listed() if page.parent.name == "decisions"]
    assert decisions == sorted(decisions)


def test_a_failing_example_names_its_line(tmp_path: Path) -> None:
    """Blocks of a page share a namespace, and a failure names the file and the line."""
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\n```python\nassert x == 1\nassert x == 2\n```\n")

    ran = run_apart(tmp_path, page)

    assert ran.returncode != 0
    assert f'File "{page}", line 9' in ran.stderr


def test_a_block_is_left_out_only_with_a_reason() -> None:
    """The comment on the line before a block has to say why."""
    block = "```python\npass\n```\n"

    assert not list(blocks(f"<!-- not run: needs a key -->\n{block}"))
    assert len(list(blocks(f"<!-- not run: -->\n{block}"))) == 1


def test_a_block_with_a_title_is_written_to_a_file(tmp_path: Path) -> None:
    """A block with a title is written to that file, in a folder if it names one, for the examples behind it."""
    page = tmp_path / "page.md"
    shown = '```yaml title="a/b.yaml"\nkey: 1\n```\n\n```python\nassert open("a/b.yaml").read() == "key: 1\\n"\n```\n'
    page.write_text(shown)

    ran = run_apart(tmp_path, page)

    assert ran.returncode == 0, ran.stderr


def test_a_page_names_the_files_that_it_shows() -> None:
    """The line before a block with a title names the file, since plain Markdown does not show titles."""
    for page in listed():
        lines = page.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if line.startswith("```") and (title := TITLE.search(line)):
                assert lines[number - 2 : number] == [f"The file `{title[1]}`:", ""], f"{page.name}:{number + 1}"


def test_output_is_compared_with_dots_for_any_text() -> None:
    """`...` stands for any text, over lines too; all else has to be the same."""
    assert looks_like("wrote 12 entries  \nin 3 ms\n", "wrote ... entries\nin ... ms")
    assert not looks_like("wrote 12 entries\n", "wrote 12 messages")


if __name__ == "__main__":
    run_pages(sys.argv[1:])
