"""Generate the synchronous classes and modules from the asynchronous ones.

    python tools/make_sync.py [--check]

It writes two kinds of modules, both listed in `sync_rules.py`:

- A module of faces, such as `palimpsest.sessions.sync`, has classes whose methods call those of an asynchronous class.
  A face has each public method and property of its asynchronous class and of that class's bases. Signature and
  docstring are copied, except for `SYNC_TYPES` and `DOCSTRING_WORDS`; the body is one call. `SPECIAL_MEMBERS` and
  `BODIES` hold the code that no rule yields.
- A copy, such as `palimpsest.resources.collection_sync`, is the text of its asynchronous module with the replacements
  of `COPY_WORDS`, which remove `async` and `await`.

With `--check` nothing is written: if a file differs from what would be written, the difference is printed, and the exit
status is 1. The tool reads source files and imports nothing of the project.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import difflib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

from sync_rules import (
    ASYNC_WORDS,
    BODIES,
    COPIES,
    COPY_WORDS,
    DOCSTRING_WORDS,
    FACE_HOMES,
    FACE_MODULES,
    FACES,
    HEADER,
    LEFT_OUT,
    SPECIAL_MEMBERS,
    SYNC_IMPORTS,
    SYNC_TYPES,
)

SOURCE = Path(__file__).resolve().parents[1] / "src"
FOLDER = SOURCE / "palimpsest" / "sessions"


class Module:
    """The source of a module: its lines, its classes, and an import statement for each name in it.

    `typed` has the names that it imports for type checkers only.
    """

    def __init__(self, name: str) -> None:
        path = SOURCE.joinpath(*name.split("."))
        text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        self.lines = text.splitlines(keepends=True)
        self.classes: dict[str, ast.ClassDef] = {}
        self.imports: dict[str, str] = {}
        self.typed: set[str] = set()
        for node in ast.parse(text).body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                for inner in node.body:
                    self.typed |= self._learn(name, inner)
            else:
                self._learn(name, node)

    def _learn(self, module: str, node: ast.stmt) -> set[str]:
        """Note what a statement of the module defines or imports, and return those names."""
        if isinstance(node, ast.ClassDef):
            self.classes[node.name] = node
        statements = {name: f"from {module} import {name}" for name in _defined(node)}
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
            statements = {alias.asname or alias.name: f"{origin}import {ast.unparse(alias)}" for alias in node.names}
        self.imports |= statements
        return set(statements)

    def text(self, first: int, last: int) -> str:
        """Return the lines from number `first` to `last`."""
        return "".join(self.lines[first - 1 : last])


class Member(NamedTuple):
    """A public method or property of an asynchronous class, and the module that defines it."""

    module: Module
    node: ast.FunctionDef | ast.AsyncFunctionDef


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


load = cache(Module)


def with_bases(module: Module, name: str) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Yield the class and its bases of this project, with their modules, bases first."""
    for base in module.classes[name].bases:
        origin = module.imports.get(base.id, "") if isinstance(base, ast.Name) else ""
        if match := re.fullmatch(r"from (palimpsest\S*) import (\w+)", origin):
            yield from with_bases(load(match[1]), match[2])
    yield module, module.classes[name]


def public_members(core: str) -> dict[str, Member]:
    """Return the public methods and properties of an asynchronous class by name, in the order of the source."""
    members_by_name: dict[str, Member] = {}
    for module, cls in with_bases(load(FACES[core][0]), core):
        for node in cls.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                members_by_name[node.name] = Member(module, node)
    return members_by_name


def face_source(core: str) -> str:
    """Return the source of the face of an asynchronous class."""
    home, name = FACES[core]
    module = load(home)
    parts = [f"class {name}:\n{_docstring_source(module, module.classes[core], name)}", SPECIAL_MEMBERS[name]]
    parts += [_method_source(name, member.module, member.node) for member in public_members(core).values()]
    return "\n".join(parts)


def _method_source(face: str, module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the source of one method or property of a face."""
    where, body = f"{face}.{node.name}", BODIES.get((face, node.name))
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if node.returns is None or (body is None and decorators not in ([], ["property"])):
        raise SystemExit(f"{where}: there is no rule for its decorators, or its return type is missing")
    core_type = ast.unparse(node.returns)
    face_type = re.sub(r"\w+", lambda word: {**SYNC_TYPES, "Self": face}.get(word[0], word[0]), core_type)
    head = module.text(node.lineno, node.body[0].lineno - 1).replace("async def", "def", 1)
    head = re.sub(r"\w+", lambda word: SYNC_TYPES.get(word[0], word[0]), head.rpartition("->")[0])
    head = f"{head}-> {face_type}:\n"
    if "Async" in head:
        raise SystemExit(f"{where}: there is no rule in SYNC_TYPES for a type of its signature: {core_type}")
    decorator_lines = "".join(f"    @{decorator}\n" for decorator in decorators)
    body = body or _body_source(node, decorators, core_type, face_type)
    return f"{decorator_lines}{head}{_docstring_source(module, node, where)}{body}"


def _body_source(
    node: ast.FunctionDef | ast.AsyncFunctionDef, decorators: list[str], core_type: str, face_type: str
) -> str:
    """Return the body of a method or property: a call of the one of the asynchronous class."""
    call = f"self._core.{node.name}" if decorators else f"self._core.{node.name}({_passed_arguments(node.args)})"
    if isinstance(node, ast.AsyncFunctionDef):
        call = f"drive({call})"
    if core_type.startswith("AbstractAsyncContextManager"):
        is_face = core_type.removeprefix("AbstractAsyncContextManager[").removesuffix("]") in FACES
        call = f"within({call}, self)" if is_face else f"within({call})"
    elif core_type == "Self" or core_type in FACES:
        call = f"{face_type}({call})"
    return f"        {call}\n" if face_type == "None" else f"        return {call}\n"


def _passed_arguments(signature: ast.arguments) -> str:
    """Return the arguments of a call that passes on every argument of a method."""
    passed = [argument.arg for argument in [*signature.posonlyargs, *signature.args][1:]]
    passed += [f"*{signature.vararg.arg}"] if signature.vararg else []
    passed += [f"{argument.arg}={argument.arg}" for argument in signature.kwonlyargs]
    passed += [f"**{signature.kwarg.arg}"] if signature.kwarg else []
    return ", ".join(passed)


def _docstring_source(module: Module, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, where: str) -> str:
    """Return the docstring of a class or method with `DOCSTRING_WORDS` replaced."""
    if ast.get_docstring(node) is None:
        raise SystemExit(f"{where} has no docstring")
    docstring = module.text(node.body[0].lineno, node.body[0].end_lineno or 0)
    for words, replacement in DOCSTRING_WORDS.items():
        docstring = docstring.replace(words, replacement)
    if unfit := ASYNC_WORDS.search(docstring):
        raise SystemExit(
            f"{where}: {unfit[0]!r} does not fit a synchronous docstring; give it a rule in DOCSTRING_WORDS"
        )
    return docstring


def import_statements(faces: str, cores: Sequence[str]) -> str:
    """Return the import statements for the source of the faces.

    Names that the cores import only for type checkers, and faces of other modules, are imported only for type checkers.
    """
    used = _free_names(faces) - {FACES[core][1] for core in cores}
    known = {name: {f"from {home} import {name}"} for name, home in {**FACE_HOMES, **SYNC_IMPORTS}.items()}
    typed = used - set(SYNC_IMPORTS)
    for core in cores:
        for module, _ in with_bases(load(FACES[core][0]), core):
            for name, statement in module.imports.items():
                known.setdefault(name, set()).add(statement)
            typed -= set(module.imports) - module.typed
    if typed:
        used.add("TYPE_CHECKING")
    for name in used:
        if len(known.get(name, ())) != 1:
            raise SystemExit(f"{name}: no import statement is known, or several differ: {known.get(name)}")
    runtime = "".join(f"{line}\n" for name in sorted(used - typed) for line in known[name])
    for_types = "".join(f"{line}\n" for name in sorted(typed) for line in known[name])
    return f"{runtime}\nif TYPE_CHECKING:\n{indent(for_types, '    ')}\n" if for_types else f"{runtime}\n"


def _free_names(source: str) -> set[str]:
    """Return the names that the source uses without defining or importing them; a face imported inside counts as free.

    A face may be imported inside a method at run time and still be named in a signature.
    """
    nodes = list(ast.walk(ast.parse(source)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | (imported - set(FACE_HOMES))
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {node.id for node in names} - bound - set(dir(builtins))


def face_module_source(name: str, cores: Sequence[str]) -> str:
    """Return the text of a module of faces."""
    faces = "\n\n".join(face_source(core) for core in cores)
    named = " and ".join(f"`{FACES[core][1]}`" for core in reversed(cores))
    head = HEADER.format(faces=named, cores=" and ".join(f"`{core}`" for core in reversed(cores)))
    text = f"{head}{import_statements(faces, cores)}\n{faces}"
    return formatted(text, FOLDER / f"{name}.py")


def copy_source(name: str) -> str:
    """Return the text of the synchronous copy of a module."""
    text = "".join(_copied_lines(name))
    for words, replacement in COPY_WORDS.items():
        text = text.replace(words, replacement)
    docstring, _, rest = text.partition("\n\n")
    notice = f"# Written by `python tools/make_sync.py`. Not to be edited: edit `{name}`, and run that again."
    if unfit := ASYNC_WORDS.search(rest):
        raise SystemExit(f"{name}: there is no rule in COPY_WORDS for {unfit[0]!r}")
    return formatted(f"{docstring}\n\n{notice}\n\n{rest}", copy_path(name))


def _copied_lines(name: str) -> list[str]:
    """Return the lines of a module without the methods that are left out of its copy."""
    module, left_out = load(name), set[int]()
    for node in (member for cls in module.classes.values() for member in cls.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in LEFT_OUT.get(name, ()):
            left_out |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return [line for number, line in enumerate(module.lines, 1) if number not in left_out]


def copy_path(name: str) -> Path:
    """Return the path of the synchronous copy of a module."""
    return SOURCE.joinpath(*name.split(".")).with_name(f"{COPIES[name]}.py")


def formatted(text: str, path: Path) -> str:
    """Return the text of a module formatted, with its imports sorted, and without unused ones."""
    for command in (["check", "--select", "F401,I", "--fix-only"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(path), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, check=True, encoding="utf-8").stdout  # noqa: S603
    return text


def main() -> None:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description="Write the synchronous faces of the asynchronous classes.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs")
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder of the modules")
    options = parser.parse_args()
    differs = False
    targets = {options.into / f"{name}.py": face_module_source(name, cores) for name, cores in FACE_MODULES.items()}
    if options.into == FOLDER:
        targets |= {copy_path(name): copy_source(name) for name in COPIES}
    for target, text in targets.items():
        if not options.check:
            target.write_text(text, encoding="utf-8")
            continue
        current = target.read_text(encoding="utf-8")
        names = (str(target), "what `python tools/make_sync.py` writes")
        sys.stdout.writelines(difflib.unified_diff(current.splitlines(True), text.splitlines(True), *names))
        differs |= current != text
    sys.exit(differs)


if __name__ == "__main__":
    main()
