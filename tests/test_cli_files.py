"""`palimpsest import` and `palimpsest export`: the shapes of files, and importing twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import CHAT, read, run, texts, write_lines
from palimpsest.sessions.importing import importer

# --- into a session


def test_importing_twice_adds_nothing(chat: str, here: Path) -> None:
    """Importing the same file again adds nothing: its messages are recognized by their content."""
    before = texts(chat)

    again = read("import", "chat.jsonl", "--session", chat)

    assert again[0]["sessions"] == [{"session": "chat", "added": 0, "already_there": 4}]
    assert texts(chat) == before


def test_a_file_that_has_grown_adds_only_new_messages(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing a file that has grown adds only its new messages, whatever the size of batches."""
    monkeypatch.setattr(importer, "BATCH", 4)
    messages = [{"role": "user", "content": f"message {number}"} for number in range(11)]
    for length in (3, 6, 11):
        write_lines(here / "grows.jsonl", messages[:length])
        run("import", "grows.jsonl")

    assert texts("grows") == [message["content"] for message in messages]


def test_files_that_begin_alike_are_both_imported(here: Path) -> None:
    """Two files with the same first message are both imported into one session, each once."""
    first = {"role": "user", "content": "Hello"}
    write_lines(here / "a.jsonl", [first, {"role": "user", "content": "from a"}])
    write_lines(here / "b.jsonl", [first, {"role": "user", "content": "from b"}])
    for name in ("a", "b", "a", "b"):
        assert run("import", f"{name}.jsonl", "--session", "both").exit_code == 0

    assert texts("both") == ["Hello", "from a", "Hello", "from b"]


def test_another_key_imports_again(chat: str) -> None:
    """`--key` imports the same messages once more."""
    again = read("import", "chat.jsonl", "--session", chat, "--key", "second time")

    assert again[0]["sessions"][0]["added"] == 4


def test_a_bad_line_is_reported_and_the_rest_imported(here: Path) -> None:
    """A malformed line is reported with file, line and reason and exits with 1; the other lines are imported."""
    lines = [CHAT[0], "{broken", '{"role": "stranger", "content": "x"}', "", '"text"', CHAT[3]]
    write_lines(here / "bad.jsonl", lines)

    result = run("import", "bad.jsonl")

    assert result.exit_code == 1
    starts = [line.split(" ")[0] for line in result.stderr.splitlines()]
    assert starts == ["bad.jsonl:2:", "bad.jsonl:3:", "bad.jsonl:5:"]
    assert texts("bad") == [CHAT[0]["content"], CHAT[3]["content"]]


def test_strict_stores_nothing_of_a_file_with_a_fault(here: Path) -> None:
    """`--strict` stops at the first fault and stores nothing of the file."""
    write_lines(here / "bad.jsonl", [CHAT[0], '{"role": "stranger"}', "{broken"])

    result = run("import", "bad.jsonl", "--strict")

    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].startswith("bad.jsonl:2: role: ")
    assert len(result.stderr.splitlines()) == 1
    assert read("sessions") == []


def test_an_invalid_session_id_in_a_file_is_refused(here: Path) -> None:
    """A conversation with an invalid `session_id` is malformed, and `--strict` finds it before anything is stored."""
    bad, good = {"session_id": "a\x07b", "messages": CHAT}, {"session_id": "fine", "messages": CHAT}
    write_lines(here / "ids.jsonl", [json.dumps(bad), json.dumps(good)])

    assert run("import", "ids.jsonl", "--strict").exit_code == 1
    assert read("sessions") == []
    assert run("import", "ids.jsonl").exit_code == 1
    assert [info["session"] for info in read("sessions")] == ["fine"]


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(CHAT),
        json.dumps(CHAT, indent=2),
        json.dumps({"messages": CHAT}),
        "\n".join(map(json.dumps, CHAT)),
        "\ufeff" + json.dumps(CHAT),
    ],
    ids=["list", "indented", "object", "lines", "byte order mark"],
)
def test_every_shape_is_recognised_on_standard_input(here: Path, body: str) -> None:
    """`import -` recognizes a list of messages, an object with messages, and JSON lines."""
    result = run("import", "-", "--session", "piped", given=body.encode())

    assert result.exit_code == 0, result.output
    assert len(texts("piped")) == 4


def test_each_conversation_of_a_file_becomes_a_session(here: Path) -> None:
    """Each conversation of a file becomes a session, named after file and line, or by its own `session_id`."""
    write_lines(here / "many.jsonl", [json.dumps(CHAT), json.dumps(CHAT[:1])])
    (here / "nested.json").write_text(json.dumps([CHAT, {"messages": CHAT[:1], "session_id": "named"}]))

    run("import", "many.jsonl", "nested.json")

    counted = {info["session"]: info["entries"] for info in read("sessions")}
    assert counted == {"many-1": 4, "many-2": 1, "nested-1": 4, "named": 1}


# --- out of a session


def test_an_export_imports_equal(chat: str, here: Path) -> None:
    """An export imported into another store exports the same entries, and importing it again adds nothing."""
    run("export", chat, "-o", "out.json")
    other = ("--store", "sqlite:///other.db")

    first, second = read("import", "out.json", *other), read("import", "out.json", *other)

    assert (first[0]["sessions"][0]["added"], second[0]["sessions"][0]["added"]) == (4, 0)
    original, imported = read("export", chat), read("export", chat, *other)
    assert original["entries"] == imported["entries"]


def test_messages_come_out_as_they_went_in(chat: str) -> None:
    """`export --format openai` prints the messages that were imported."""
    assert json.loads(run("export", chat, "--format", "openai").stdout) == CHAT


@pytest.mark.parametrize("what", ["export", "page"])
@pytest.mark.parametrize("name", ["chats.db", "link.db", "another.db"])
def test_no_database_is_overwritten(chat: str, here: Path, what: str, name: str) -> None:
    """`export -o` and `context --html` overwrite no database, the store itself included, also through a link."""
    (here / "link.db").symlink_to("chats.db")
    assert run("import", "chat.jsonl", "--store", "sqlite:///another.db").exit_code == 0
    options = ["export", chat, "-o", name] if what == "export" else ["context", chat, "--html", name]
    before = texts(chat)

    refused = run(*options)

    assert refused.exit_code == 2
    assert "no database" in refused.stderr
    assert texts(chat) == before
    assert read("sessions", "--store", "sqlite:///another.db")


def test_an_export_with_a_gap_is_refused(chat: str, here: Path) -> None:
    """An export that lacks an entry is refused, and nothing of it is stored."""
    export = read("export", chat)
    del export["entries"][1]
    (here / "gap.json").write_text(json.dumps(export))

    result = run("import", "gap.json", "--session", "gap")

    assert result.exit_code == 1
    assert "entry 2 is missing" in result.stderr
    assert [info["session"] for info in read("sessions")] == ["chat"]
