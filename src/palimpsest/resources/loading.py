"""Loading declared memories from files, folders and mappings: all of them, or every mistake."""

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
"""What a file of a folder says that declares a memory, as YAML and JSON write it; others may say it somewhere, too."""
MOST_BYTES = 4 * LONGEST + 1
"""Bytes of a file that are read: as many as its characters may have, and one by which a longer one is known."""


def loaded(source: object, project: str = "default") -> list[Resource]:
    """Return the memories that a file, a folder or a mapping declares. Raises InvalidResource with every mistake."""
    check_name(project, "project")
    if isinstance(source, Mapping):
        check_depth(source, "source")
        return _all([(None, source)], project)
    if not isinstance(source, str | os.PathLike):
        raise ConfigError("source", type(source).__name__, "a file, a folder, or a mapping")
    if isinstance(source, str) and not source.strip():  # as a shell gives for a variable that is not set
        raise ConfigError("source", source, "a file or a folder that is named ('.' for the current one), or a mapping")
    path = Path(source)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as fault:  # such as a name that is too long to be one
        told = f"a file or a folder that can be looked at ({fault.strerror or fault}), or a mapping"
        raise ConfigError("source", str(source), told) from fault
    if is_folder:
        return _all(list(_declaring(path)), project, in_folder=True)
    if not is_file:
        raise ConfigError("source", str(source), "a file or a folder that is there, or a mapping")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError("source", str(source), f"a file whose name ends in {', '.join(SUFFIXES)}")
    return _all([(path, None)], project)


def _declaring(folder: Path) -> Iterator[tuple[Path, None]]:
    """The files of a folder, and of those in it, that seem to declare a memory, by name."""
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()):
        try:
            said = _bytes(path)
        except OSError:  # which is told, for nobody knows whether it is one
            yield path, None
            continue
        if _DECLARED.search(said.decode("utf-8", errors="replace")):
            yield path, None


def _bytes(path: Path) -> bytes:
    """What a file has, up to more than one may have. Raises OSError."""
    with path.open("rb") as file:
        return file.read(MOST_BYTES)


def _declares(value: object) -> bool:
    """Whether what a file says is a memory: others of a folder may have these words in some other place."""
    return isinstance(value, Mapping) and value.get("resource") == "memory"


def _all(
    sources: list[tuple[Path | None, Mapping[str, Any] | None]], project: str, *, in_folder: bool = False
) -> list[Resource]:
    found, mistakes, places = list[Resource](), list[Mistake](), dict[str, str]()
    for path, value in sources:
        file = None if path is None else str(path)
        problems = Problems()
        document = Document(value, {}) if path is None else _read(path, problems)
        if document is None:
            mistakes += _told(problems, Document(None, {}), file)
            continue
        if in_folder and not _declares(document.value):
            continue
        resource = resource_of(document.value, problems, project=project, file=file)
        if resource.id in places and not problems.found:
            problems.add(("id",), resource.id, f"an id of its own: it is that of {places[resource.id]}, too")
        places.setdefault(resource.id, file or "the mapping")
        mistakes += _told(problems, document, file)
        found.append(resource)
    if mistakes:
        raise InvalidResource(mistakes)
    return found


def _read(path: Path, problems: Problems) -> Document | None:
    """What a file says; None where that cannot be read, which is noted."""
    try:
        said = _bytes(path)
        if len(said) == MOST_BYTES:
            problems.add((), f"over {len(said):,} bytes", f"a file of at most {LONGEST:,} characters")
            return None
        text = said.decode("utf-8-sig")
        return read_document(text, problems.found, is_json=path.suffix.lower() == ".json")
    except UnicodeDecodeError as fault:
        problems.add((), f"byte {fault.start}", "UTF-8")
    except OSError as fault:
        problems.add((), fault.strerror or str(fault), "a file that can be read")
    except Problem as problem:
        problems.found.append(problem)
    return None


def _told(problems: Problems, document: Document, file: str | None) -> list[Mistake]:
    """The problems of one file as mistakes, in the order of their lines."""
    value = document.value
    id = value.get("id") if isinstance(value, Mapping) else None
    memory = hidden(id) if isinstance(id, str) else None
    told = []
    for problem in problems.found:
        path = _written(problem.path, problems)
        place = problem.place or _place(path, document.places)
        line, column = place if place is not None else (None, None)
        found, allowed = shorten(problem.found), problem.allowed
        key, nearest, within = hidden(spelled(path)), problem.nearest, problem.within
        told.append(Mistake(file, line, column, memory, key, found, allowed, nearest, within))
    return sorted(told, key=lambda one: (one.line or 0, one.column or 0))


def _written(path: Keys, problems: Problems) -> Keys:
    """Where a path stands in the file: under `profile`, where what it begins with was given there; without the names of
    a list that it has not."""
    if problems.bare and path[: len(problems.bare)] == problems.bare:
        return path[len(problems.bare) :]
    return ("profile", *path) if path and path[0] in problems.inside.get("profile", ()) else path


def _place(path: Keys, places: dict[Keys, Place]) -> Place | None:
    """The place of a path, or of what holds it, where it is missing."""
    for end in range(len(path), 0, -1):
        if path[:end] in places:
            return places[path[:end]]
    return Place(1, 1) if places else None
