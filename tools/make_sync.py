"""Generate the synchronous classes and modules from the asynchronous ones.

In `src/palimpsest/sessions`, `sync.py`, `working_sync.py` and `knowledge_sync.py` hold faces: classes whose methods
call those of an asynchronous class. The synchronous modules of declared memories (`palimpsest.resources`) and of doors
for programs of other memories (`palimpsest.compat`) are copies of their asynchronous module without `async` and
`await`.

    python tools/make_sync.py [--check]

A face has each public method and property of its asynchronous class and of the bases of that. Signature and docstring
are those of the source, word for word but for `RETURNS` and `WORDS`; the body is one call. `MEMBERS` and `BODIES` have
what no rule yields. With `--check` nothing is written: if a file is not as it would be written, the difference is
printed, and the exit status is 1. This reads source files and imports nothing of the project.
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

SOURCE = Path(__file__).resolve().parents[1] / "src"
FOLDER = SOURCE / "palimpsest" / "sessions"

FACES = {
    "AsyncSession": ("palimpsest.sessions.session", "Session"),
    "AsyncMemory": ("palimpsest.sessions.memory", "Memory"),
    "AsyncWorkingMemory": ("palimpsest.sessions.working", "WorkingMemory"),
    "AsyncKnowledge": ("palimpsest.sessions.knowledge.base", "Knowledge"),
}
"""The module of each asynchronous class, and the name of its face."""

TARGETS = {
    "sync": ["AsyncSession", "AsyncMemory"],
    "working_sync": ["AsyncWorkingMemory"],
    "knowledge_sync": ["AsyncKnowledge"],
}
"""The modules that are written, and the classes whose faces each has. What few programs load is in separate modules."""

DOORS = {
    "palimpsest.compat.agterm.manager": "sync",
    "palimpsest.resources.answering": "answering_sync",
    "palimpsest.resources.collection": "collection_sync",
    "palimpsest.resources.operations": "operations_sync",
}
"""Modules that are copied as a whole, but for `PLAIN` and `WAITING`, and the name of the copy in the same package."""

WAITING = {"palimpsest.resources.collection": ["worker"]}
"""Methods that the copies of these modules do not have."""

PLAIN = {
    " over the sessions of a memory. `sync.py` is generated from it.": " over the sessions of a memory.",
    "for asynchronous programs written for": "for programs written for",
    "handler: a function or coroutine function.": (
        'handler: a function or coroutine function; for "config:changed" a function alone.'
    ),
    "async def ": "def ",
    "async with held(": "with held_inline(",
    "resources.clearing import held": "resources.clearing import held_inline",
    "_tallies.active(": "_tallies.active_inline(",
    "import Awaitable, Callable": "import Callable",
    "Awaitable[Reply]": "Reply",
    "\n\n`answering_sync.py` is written out of it.\n": "",
    "await ": "",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "completed": "ended",
    "several of one agent. `collection_sync.py` is written out of it.": "several of one agent.",
    "first used, for programs with an event loop:\n    `async with": "first used:\n    `with",
    " of a declared one; its first verb opens the store.": " of a declared one.",
    ": a declared memory by its keys. `operations_sync.py` is written out of it.": ": a declared memory by its keys.",
    "A declared memory by its keys, for programs with an event loop. Made": "A declared memory by its keys. Made",
    "together, for programs with an event loop. Made by\n    `": "together. Made by\n    `",
    "resources.operations import": "resources.operations_sync import",
    "AsyncAnswers": "Answers",
    "AsyncAgentMemory": "AgentMemory",
    "AsyncDeclaredMemory": "DeclaredMemory",
    "AsyncResources": "Resources",
    "palimpsest.sessions.memory import": "palimpsest.sessions.sync import",
    "palimpsest.sessions.session import": "palimpsest.sessions.sync import",
    "AsyncMemory": "Memory",
    "AsyncSession": "Session",
}
"""Replacements, in this order, for the text of a copied module."""

RETURNS = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncSession": "Session",
    "AsyncMemory": "Memory",
    "AsyncWorkingMemory": "WorkingMemory",
    "AsyncKnowledge": "Knowledge",
}
"""Types in signatures of the asynchronous classes, and those of the faces in their place. `Self` becomes the face."""

WORDS = {
    "A store and its sessions, for programs with an event loop: `async with AsyncMemory.open(url) as memory:`.": """\
A store and its sessions: `with Memory.open("sqlite:///agent.db") as memory:`.

    It needs no event loop, and threads may share it. Background work runs in threads of its own, and so does the
    renewal of the lease of an open `turn()`.""",
    "Return a memory over a store: ": "Open a store: ",
    """Nothing is opened yet: `async with` opens the store and closes it. Otherwise the first awaited verb opens it,
        and if that fails, the next one tries again.

        Opening raises """: "Raises ",
    "which `async with` does by itself, and the first verb": "which `open` does by itself",
    "`async with ": "`with ",
    "AsyncMemory": "Memory",
    "AsyncWorkingMemory": "WorkingMemory",
    'A knowledge base, for programs with an event loop: `memory.knowledge("handbook")`': """\
A knowledge base: `memory.knowledge("handbook")`""",
}
"""Replacements, in this order, for words of docstrings that only fit an asynchronous class."""

UNFIT = re.compile(r"\b(async|await)\w*", re.IGNORECASE)
"""Words that must not be left in what is generated."""

MEMBERS = {
    "Session": """\
    def __init__(self, core: AsyncSession) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<Session {self.id!r}>"
""",
    "Memory": '''\
    def __init__(self, core: AsyncMemory | None = None) -> None:
        if core is None or isinstance(core, str) or hasattr(core, "__fspath__"):
            raise ConfigError("Memory", core, "what Memory.open(address) gives, such as Memory.open('agent.db')")
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tenant(self) -> str:
        """The tenant that owns this memory's sessions."""
        return self._core.tenant
''',
    "WorkingMemory": """\
    def __init__(self, core: AsyncWorkingMemory) -> None:
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)
""",
    "Knowledge": """\
    def __init__(self, core: AsyncKnowledge) -> None:
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)
""",
}

WORKING = """\
        from palimpsest.sessions.working_sync import WorkingMemory  # not needed by most programs

        return WorkingMemory(self._core.{})
"""

KNOWLEDGE = """\
        from palimpsest.sessions.knowledge_sync import Knowledge  # not needed by most programs

        return Knowledge(self._core.knowledge({}))
"""

BODIES = {
    ("Session", "knowledge"): KNOWLEDGE.format("collection"),
    ("Memory", "knowledge"): KNOWLEDGE.format(
        "collection, user=user, embedder=embedder, text_splitter=text_splitter, counter=counter"
    ),
    ("Session", "working"): WORKING.format("working"),
    ("Memory", "working"): WORKING.format("working(scope, history=history, value_bytes=value_bytes)"),
    ("Memory", "bind"): """\
        from palimpsest.sessions.binding import bound  # not needed by most programs

        return bound(self, session)
""",
    ("Memory", "from_resource"): """\
        arguments, defaults = declared("single", source, id)
        memory = cls.open(**arguments, tenant=tenant, clock=clock)
        memory._core._defaults = defaults  # noqa: SLF001 (the face of this class)
        return memory
""",
    ("Memory", "from_env"): """\
        arguments, defaults = declared("environment", environ)
        memory = cls.open(**arguments, tenant=tenant, clock=clock)
        memory._core._defaults = defaults  # noqa: SLF001 (the face of this class)
        return memory
""",
    ("Memory", "open"): """\
        store_options = {**options, "circuit_breaker": circuit_breaker}
        parts = where, Inline(), tenant, clock, encryption, gate_of(privacy), view_bytes, store_options
        core = AsyncMemory(*parts, sweep_every, turn_lease, compaction_lease, embedder, recall_index)
        drive(core.__aenter__())
        return cls(core)
""",
}

HOMES = {
    "AbstractContextManager": "contextlib",
    "Inline": "palimpsest.runtime.runner",
    "Self": "typing",
    "drive": "palimpsest.runtime.runner",
    "within": "palimpsest.runtime.runner",
}
"""The modules of names that the faces need, but the asynchronous classes do not."""

APART = {
    face: f"palimpsest.sessions.{target}" for target, cores in TARGETS.items() for _, face in map(FACES.get, cores)
}
"""The module of each face."""

HEAD = '''\
"""{faces}: the synchronous faces of {cores}."""

# Written by `python tools/make_sync.py`. Not to be edited: edit the asynchronous classes, and run that again.

from __future__ import annotations

'''


class Module:
    """The source of a module: its lines, its classes, the import statement for each name, and the names for type
    checkers only."""

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


def family(module: Module, name: str) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Yield the class and its bases of this project, with their modules, bases first."""
    for base in module.classes[name].bases:
        origin = module.imports.get(base.id, "") if isinstance(base, ast.Name) else ""
        if match := re.fullmatch(r"from (palimpsest\S*) import (\w+)", origin):
            yield from family(load(match[1]), match[2])
    yield module, module.classes[name]


def members(core: str) -> dict[str, Member]:
    """Return the public methods and properties of an asynchronous class by name, in the order of the source."""
    members_by_name: dict[str, Member] = {}
    for module, cls in family(load(FACES[core][0]), core):
        for node in cls.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                members_by_name[node.name] = Member(module, node)
    return members_by_name


def face(core: str) -> str:
    """Return the source of the face of an asynchronous class."""
    home, name = FACES[core]
    module = load(home)
    parts = [f"class {name}:\n{_docstring(module, module.classes[core], name)}", MEMBERS[name]]
    parts += [_verb(name, member.module, member.node) for member in members(core).values()]
    return "\n".join(parts)


def _verb(face: str, module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the source of one method or property of a face."""
    where, body = f"{face}.{node.name}", BODIES.get((face, node.name))
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if node.returns is None or (body is None and decorators not in ([], ["property"])):
        raise SystemExit(f"{where}: there is no rule for what is decorated so, or returns what is not said")
    core_type = ast.unparse(node.returns)
    face_type = re.sub(r"\w+", lambda word: {**RETURNS, "Self": face}.get(word[0], word[0]), core_type)
    head = module.text(node.lineno, node.body[0].lineno - 1).replace("async def", "def", 1)
    head = re.sub(r"\w+", lambda word: RETURNS.get(word[0], word[0]), head.rpartition("->")[0])
    head = f"{head}-> {face_type}:\n"
    if "Async" in head:
        raise SystemExit(f"{where}: there is no rule for what it takes or returns: {core_type}")
    decorator_lines = "".join(f"    @{decorator}\n" for decorator in decorators)
    body = body or _body(node, decorators, core_type, face_type)
    return f"{decorator_lines}{head}{_docstring(module, node, where)}{body}"


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef, decorators: list[str], core_type: str, face_type: str) -> str:
    """Return the body of a method or property: a call of that of the asynchronous class."""
    call = f"self._core.{node.name}" if decorators else f"self._core.{node.name}({_passed(node.args)})"
    if isinstance(node, ast.AsyncFunctionDef):
        call = f"drive({call})"
    if core_type.startswith("AbstractAsyncContextManager"):
        is_face = core_type.removeprefix("AbstractAsyncContextManager[").removesuffix("]") in FACES
        call = f"within({call}, self)" if is_face else f"within({call})"
    elif core_type == "Self" or core_type in FACES:
        call = f"{face_type}({call})"
    return f"        {call}\n" if face_type == "None" else f"        return {call}\n"


def _passed(signature: ast.arguments) -> str:
    """Return the arguments of the call that passes on what a method was given."""
    passed = [argument.arg for argument in [*signature.posonlyargs, *signature.args][1:]]
    passed += [f"*{signature.vararg.arg}"] if signature.vararg else []
    passed += [f"{argument.arg}={argument.arg}" for argument in signature.kwonlyargs]
    passed += [f"**{signature.kwarg.arg}"] if signature.kwarg else []
    return ", ".join(passed)


def _docstring(module: Module, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, where: str) -> str:
    """Return the docstring of the source, in words that fit the face."""
    if ast.get_docstring(node) is None:
        raise SystemExit(f"{where} has no docstring")
    docstring = module.text(node.body[0].lineno, node.body[0].end_lineno or 0)
    for words, replacement in WORDS.items():
        docstring = docstring.replace(words, replacement)
    if unfit := UNFIT.search(docstring):
        raise SystemExit(f"{where}: {unfit[0]!r} does not fit a synchronous docstring; give it a rule in WORDS")
    return docstring


def imports(faces: str, cores: Sequence[str]) -> str:
    """Return the import statements for the faces.

    What the cores import for type checkers only is imported likewise, and so is a face of another module.
    """
    names = [node for node in ast.walk(ast.parse(faces)) if isinstance(node, ast.Name | ast.arg)]
    bound = {node.arg for node in names if isinstance(node, ast.arg)} | {FACES[core][1] for core in cores}
    bound |= {node.id for node in names if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    inner = {
        alias.name for node in ast.walk(ast.parse(faces)) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    bound |= inner - set(APART)
    used = {node.id for node in names if isinstance(node, ast.Name)} - bound - set(dir(builtins))
    known = {name: {f"from {home} import {name}"} for name, home in {**APART, **HOMES}.items()}
    typed = set(used) - set(HOMES)
    for core in cores:
        for module, _ in family(load(FACES[core][0]), core):
            for name, statement in module.imports.items():
                known.setdefault(name, set()).add(statement)
            typed -= set(module.imports) - module.typed
    if typed:
        used.add("TYPE_CHECKING")
    parted = sorted(used - typed), sorted(typed)
    for name in used:
        if len(known.get(name, ())) != 1:
            raise SystemExit(f"{name}: what it is imported from is not known, or is not one thing: {known.get(name)}")
    runtime, for_types = ("".join(f"{line}\n" for name in names for line in known[name]) for names in parted)
    return f"{runtime}\nif TYPE_CHECKING:\n{indent(for_types, '    ')}\n" if for_types else f"{runtime}\n"


def rendered(name: str, cores: Sequence[str]) -> str:
    """Return the text of a module of faces."""
    faces = "\n\n".join(face(core) for core in cores)
    named = " and ".join(f"`{FACES[core][1]}`" for core in reversed(cores))
    head = HEAD.format(faces=named, cores=" and ".join(f"`{core}`" for core in reversed(cores)))
    text = f"{head}{imports(faces, cores)}\n{faces}"
    return formatted(text, FOLDER / f"{name}.py")


def door(name: str) -> str:
    """Return the text of the synchronous copy of a module."""
    text = "".join(_plain_lines(name))
    for words, replacement in PLAIN.items():
        text = text.replace(words, replacement)
    docstring, _, rest = text.partition("\n\n")
    notice = f"# Written by `python tools/make_sync.py`. Not to be edited: edit `{name}`, and run that again."
    if unfit := UNFIT.search(rest):
        raise SystemExit(f"{name}: there is no rule for {unfit[0]!r}")
    return formatted(f"{docstring}\n\n{notice}\n\n{rest}", home(name))


def _plain_lines(name: str) -> list[str]:
    """Return the lines of a module without the methods that its copy does not have."""
    module, left_out = load(name), set[int]()
    for node in (member for cls in module.classes.values() for member in cls.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in WAITING.get(name, ()):
            left_out |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return [line for number, line in enumerate(module.lines, 1) if number not in left_out]


def home(name: str) -> Path:
    """Return the path of the synchronous copy of a module."""
    return SOURCE.joinpath(*name.split(".")).with_name(f"{DOORS[name]}.py")


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
    targets = {options.into / f"{name}.py": rendered(name, cores) for name, cores in TARGETS.items()}
    if options.into == FOLDER:
        targets |= {home(name): door(name) for name in DOORS}
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
