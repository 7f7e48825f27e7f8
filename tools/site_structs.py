"""An extension of griffe for the reference on the site: it gives msgspec structs the signature of their constructor."""

from __future__ import annotations

from typing import Any

import griffe

_NO_FIELDS = {"property"}


class Structs(griffe.Extension):
    """Gives every struct the `__init__` that msgspec makes at run time, since the reference is read from the source."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Add the constructors once a package has been read."""
        pending = [pkg]
        while pending:
            module = pending.pop()
            pending += [member for member in module.modules.values() if not member.is_alias]
            for cls in module.classes.values():
                if not cls.is_alias and "__init__" not in cls.members and _is_struct(cls):
                    cls.set_member("__init__", _constructor(cls))


def _is_struct(cls: griffe.Class) -> bool:
    """Return whether this class, or one of its bases, is a struct of msgspec."""
    bases = [base for class_ in (cls, *_parents(cls)) for base in class_.bases]
    return any(str(base).rpartition(".")[2] == "Struct" for base in bases)


def _parents(cls: griffe.Class) -> list[griffe.Class]:
    """Return the bases in this project, nearest first."""
    return [base for base in cls.mro() if isinstance(base, griffe.Class)]


def _constructor(cls: griffe.Class) -> griffe.Function:
    """Return the constructor of a struct. The default of a subclass overrides that of its base."""
    fields = {}
    for class_ in filter(_is_struct, (*reversed(_parents(cls)), cls)):
        for name, field in class_.attributes.items():
            if field.annotation is not None and not field.labels & _NO_FIELDS and not field.is_alias:
                fields[name] = griffe.Parameter(
                    name, annotation=field.annotation, default=field.value, kind=griffe.ParameterKind.keyword_only
                )
    this = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    return griffe.Function("__init__", parameters=griffe.Parameters(this, *fields.values()), returns="None")
