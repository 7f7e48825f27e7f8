"""Loading declared memories from files, folders and mappings: either all are returned, or every mistake is raised."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import ConfigError, InvalidResource, shorten
from palimpsest.errors.mistakes import Mistake
from palimpsest.errors.secret import hidden
from palimpsest.log.checks import check_depth
from palimpsest.resources.declared import resource_of
from palimpsest.resources.definition import Resource
from palimpsest.resources.keys import check_name
from palimpsest.resources.problems import Path as Keys
from palimpsest.resources.problems import Place, Problem, Problems, spelled
from palimpsest.resources.reading import LONGEST, Document, read_document

SUFFIXES = (".yaml", ".yml", ".json")
_DECLARED = re.compile(r"""(?:^|[{,])[ \t]*["']?resource["']?\s*:\s*["']?memory\b""", re.MULTILINE)
"""Finds `resource: memory` in the text of a file, as YAML and JSON write it. Other files may contain it, too, elsewhere
than at their root."""
MOST_BYTES = 4 * LONGEST + 1
"""The most bytes that are read of a file: what its characters may take, and one more that shows that it is longer."""


def loaded(source: object, project: str = "default") -> list[Resource]:
    """Return the memories that a file, a folder or a mapping declares.

    Raises InvalidResource with every mistake, and ConfigError for a source that is none.
    """
    check_name(project, "project")
    if isinstance(source, Mapping):
        check_depth(source, "source")
        return _all([(None, source)], project)
    if not isinstance(source, str | os.PathLike):
        raise ConfigError("source", type(source).__name__, "a file, a folder, or a mapping")
    if isinstance(source, str) and not source.strip():  # what a shell passes for a variable that is not set
        raise ConfigError("source", source, "the name of a file or a folder ('.' for the current one), or a mapping")
    path = Path(source)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as fault:  # such as a name that is too long for the file system
        allowed = f"a file or a folder that can be read ({fault.strerror or fault}), or a mapping"
        raise ConfigError("source", str(source), allowed) from fault
    if is_folder:
        return _all(list(_declaring(path)), project, in_folder=True)
    if not is_file:
        raise ConfigError("source", str(source), "an existing file or folder, or a mapping")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError("source", str(source), f"a file whose name ends in {', '.join(SUFFIXES)}")
    return _all([(path, None)], project)


def _declaring(folder: Path) -> Iterator[tuple[Path, None]]:
    """Yield the files of a folder and its subfolders that seem to declare a memory, sorted by path."""
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()):
        try:
            content = _bytes(path)
        except OSError:  # it might declare a memory: reading it again notes the mistake
            yield path, None
            continue
        if _DECLARED.search(content.decode("utf-8", errors="replace")):
            yield path, None


def _bytes(path: Path) -> bytes:
    """Return the content of a file, at most `MOST_BYTES`. Raises OSError."""
    with path.open("rb") as file:
        return file.read(MOST_BYTES)


def _declares(value: object) -> bool:
    """Whether the content of a file declares a memory: `_DECLARED` also finds the words elsewhere in a file."""
    return isinstance(value, Mapping) and value.get("resource") == "memory"


def _all(
    sources: list[tuple[Path | None, Mapping[str, Any] | None]], project: str, *, in_folder: bool = False
) -> list[Resource]:
    """Read all sources, each a file or a mapping. Raises InvalidResource. `in_folder`: files that declare no memory are
    skipped."""
    resources, mistakes, places = list[Resource](), list[Mistake](), dict[str, str]()
    for path, value in sources:
        file = None if path is None else str(path)
        problems = Problems()
        document = Document(value, {}) if path is None else _read(path, problems)
        if document is None:
            mistakes += _mistakes(problems, Document(None, {}), file)
            continue
        if in_folder and not _declares(document.value):
            continue
        resource = resource_of(document.value, problems, project=project, file=file)
        if resource.id in places and not problems.found:
            problems.add(
                ("id",),
                resource.id,
                f"an id that no other memory has: this is also the id of {places[resource.id]}, too",
            )
        places.setdefault(resource.id, file or "the mapping")
        mistakes += _mistakes(problems, document, file)
        resources.append(resource)
    if mistakes:
        raise InvalidResource(mistakes)
    return resources


def _read(path: Path, problems: Problems) -> Document | None:
    """Read a file; None if it cannot be read, which is noted in `problems`."""
    try:
        content = _bytes(path)
        if len(content) == MOST_BYTES:
            problems.add((), f"over {len(content):,} bytes", f"a file of at most {LONGEST:,} characters")
            return None
        text = content.decode("utf-8-sig")
        return read_document(text, problems.found, is_json=path.suffix.lower() == ".json")
    except UnicodeDecodeError as fault:
        problems.add((), f"byte {fault.start}", "UTF-8")
    except OSError as fault:
        problems.add((), fault.strerror or str(fault), "a file that can be read")
    except Problem as problem:
        problems.found.append(problem)
    return None


def _mistakes(problems: Problems, document: Document, file: str | None) -> list[Mistake]:
    """Return the problems of one file as mistakes, in the order of their lines."""
    value = document.value
    id = value.get("id") if isinstance(value, Mapping) else None
    memory = hidden(id) if isinstance(id, str) else None
    mistakes = []
    for problem in problems.found:
        path = _path_in_file(problem.path, problems)
        place = problem.place or _place(path, document.places)
        line, column = place if place is not None else (None, None)
        found, allowed = shorten(problem.found), problem.allowed
        key, nearest, within = hidden(spelled(path)), problem.nearest, problem.within
        mistakes.append(Mistake(file, line, column, memory, key, found, allowed, nearest, within))
    return sorted(mistakes, key=lambda mistake: (mistake.line or 0, mistake.column or 0))


def _path_in_file(path: Keys, problems: Problems) -> Keys:
    """Return the path in the file for a path in a resource.

    It begins with `profile` if the key was given there. In a file that is only a strategy, or a list of them, it lacks
    the keys that were put around these.
    """
    if problems.bare and path[: len(problems.bare)] == problems.bare:
        return path[len(problems.bare) :]
    return ("profile", *path) if path and path[0] in problems.inside.get("profile", ()) else path


def _place(path: Keys, places: dict[Keys, Place]) -> Place | None:
    """Return the place of a path; if it is missing in the file, that of the nearest value around it."""
    for end in range(len(path), 0, -1):
        if path[:end] in places:
            return places[path[:end]]
    return Place(1, 1) if places else None
