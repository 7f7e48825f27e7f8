"""A process that imports every module of the library and prints which types `msgspec` has inspected by then.

`msgspec` inspects the fields of a type when it first decodes it, or earlier if asked. Two threads doing so at once
could crash the process, so every stored type must be inspected at import. Modules of `palimpsest.integrations` are left
out: they read nothing that is stored.

Prints "late": types inspected only after their module was imported; "unknown": types that are read but not inspected;
"read": all types that are read.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any, get_args

READ_BY = {"decode": "type", "convert": "type", "decoded": "kind", "unescaped": "kind", "_converted": "kind"}
"""Functions that decode a value of a type, with the name of the parameter for the type, which is the second one."""


def is_known(kind: type) -> bool:
    """Whether `msgspec` has inspected the fields of a class."""
    return "__msgspec_cache__" in vars(kind) or any(
        type(one).__name__ == "StructInfo" for one in gc.get_referents(kind)
    )


def own(module: ModuleType) -> list[type]:
    """Return the classes that a module defines."""
    return [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]


def classes_in(kind: Any) -> Iterator[type]:
    """Yield the classes with fields that a type consists of."""
    if hasattr(kind, "__struct_fields__") or hasattr(kind, "_fields"):
        yield kind
    for part in get_args(kind):
        yield from classes_in(part)


def read_in(module: ModuleType) -> Iterator[type]:
    """Yield the classes that a module's functions decode, as far as the calls name them."""
    source = inspect.getsource(module)
    if not any(f"{name}(" in source for name in READ_BY):
        return
    for call in ast.walk(ast.parse(source)):
        name = getattr(call.func, "attr", None) or getattr(call.func, "id", "") if isinstance(call, ast.Call) else ""
        if name in READ_BY:
            named = [word.value for word in call.keywords if word.arg == READ_BY[name]]  # type: ignore[attr-defined]
            for kind in (*call.args[1:2], *named):  # type: ignore[attr-defined]
                try:
                    yield from classes_in(eval(ast.unparse(kind), vars(module)))  # noqa: S307 (source of the library)
                except NameError:  # the type is a parameter of the calling function
                    continue


def main() -> None:
    """Import all modules and print the result."""
    known_when_defined = dict[type, bool]()
    run = SourceFileLoader.exec_module

    def watched(loader: SourceFileLoader, module: ModuleType) -> None:
        run(loader, module)
        known_when_defined.update((kind, is_known(kind)) for kind in own(module))

    SourceFileLoader.exec_module = watched  # type: ignore[method-assign,assignment]
    modules = [importlib.import_module("palimpsest")]
    for found in pkgutil.walk_packages(modules[0].__path__, "palimpsest."):
        if not found.name.endswith("__main__") and not found.name.startswith("palimpsest.integrations."):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                modules.append(importlib.import_module(found.name))
    read = {kind for module in modules for kind in read_in(module) if kind.__module__.startswith("palimpsest.")}
    late = [kind for kind, known in known_when_defined.items() if is_known(kind) and not known]
    unknown = [kind for kind in read if not is_known(kind)]
    names = [sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in found) for found in (late, unknown, read)]
    sys.stdout.write(json.dumps({"late": names[0], "unknown": names[1], "read": names[2]}))


if __name__ == "__main__":
    main()
