"""The rules of `make_sync.py`: which classes and modules get a synchronous form, and which words change in it."""

from __future__ import annotations

import re

FACES = {
    "AsyncSession": ("palimpsest.sessions.session", "Session"),
    "AsyncMemory": ("palimpsest.sessions.memory", "Memory"),
    "AsyncWorkingMemory": ("palimpsest.sessions.working", "WorkingMemory"),
    "AsyncKnowledge": ("palimpsest.sessions.knowledge.base", "Knowledge"),
}
"""For each asynchronous class: its module, and the name of its face."""

FACE_MODULES = {
    "sync": ["AsyncSession", "AsyncMemory"],
    "working_sync": ["AsyncWorkingMemory"],
    "knowledge_sync": ["AsyncKnowledge"],
}
"""The modules of faces in `palimpsest.sessions`, and the asynchronous classes whose faces each of them holds.

Faces that few programs need have modules of their own, so that others do not load them.
"""

COPIES = {
    "palimpsest.compat.agterm.manager": "sync",
    "palimpsest.resources.answering": "answering_sync",
    "palimpsest.resources.collection": "collection_sync",
    "palimpsest.resources.operations": "operations_sync",
}
"""Modules that are copied as a whole, and the name of the copy in the same package."""

LEFT_OUT = {"palimpsest.resources.collection": ["worker"]}
"""Methods that are left out of the copy of a module."""

COPY_WORDS = {
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
"""Replacements in the text of a copied module, applied in this order."""

SYNC_TYPES = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncSession": "Session",
    "AsyncMemory": "Memory",
    "AsyncWorkingMemory": "WorkingMemory",
    "AsyncKnowledge": "Knowledge",
}
"""Replacements for types in the signatures of asynchronous classes. `Self` also becomes the face."""

DOCSTRING_WORDS = {
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
"""Replacements for words of docstrings that fit only an asynchronous class, applied in this order."""

ASYNC_WORDS = re.compile(r"\b(async|await)\w*", re.IGNORECASE)
"""Words that must not remain in a generated docstring or copy."""

SPECIAL_MEMBERS = {
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
"""Source of the members at the beginning of each face that its asynchronous class lacks or has otherwise."""

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
"""Bodies of the methods of faces that are more than one call."""

SYNC_IMPORTS = {
    "AbstractContextManager": "contextlib",
    "Inline": "palimpsest.runtime.runner",
    "Self": "typing",
    "drive": "palimpsest.runtime.runner",
    "within": "palimpsest.runtime.runner",
}
"""The modules of names that the faces use, but the asynchronous classes do not import."""

FACE_HOMES = {
    FACES[core][1]: f"palimpsest.sessions.{module}" for module, cores in FACE_MODULES.items() for core in cores
}
"""The module of each face."""

HEADER = '''\
"""{faces}: the synchronous faces of {cores}."""

# Written by `python tools/make_sync.py`. Not to be edited: edit the asynchronous classes, and run that again.

from __future__ import annotations

'''
"""The beginning of a module of faces."""
