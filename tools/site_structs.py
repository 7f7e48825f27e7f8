"""For the site's reference: a msgspec struct is made of its fields, which is what its signature shows."""

from __future__ import annotations

from typing import Any

import griffe

_NO_FIELDS = {"property"}


class Structs(griffe.Extension):
    """Give every struct the `__init__` that msgspec makes at run time, since the reference is read from the source."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Go through a package when all of it is read."""
        pending = [pkg]
        while pending:
            module = pending.pop()
            pending += [member for member in module.modules.values() if not member.is_alias]
            for found in module.classes.values():
                if not found.is_alias and "__init__" not in found.members and _is_struct(found):
                    found.set_member("__init__", _made(found))


def _is_struct(found: griffe.Class) -> bool:
    """Whether this class, or one that it is made from, is a struct of msgspec's."""
    bases = [base for each in (found, *_parents(found)) for base in each.bases]
    return any(str(base).rpartition(".")[2] == "Struct" for base in bases)


def _parents(found: griffe.Class) -> list[griffe.Class]:
    """The classes of ours that it is made from, nearest first."""
    return [base for base in found.mro() if isinstance(base, griffe.Class)]


def _made(found: griffe.Class) -> griffe.Function:
    """What takes its fields: a later class's default goes before an earlier one's."""
    fields = {}
    for each in filter(_is_struct, (*reversed(_parents(found)), found)):
        for name, field in each.attributes.items():
            if field.annotation is not None and not field.labels & _NO_FIELDS and not field.is_alias:
                fields[name] = griffe.Parameter(
                    name, annotation=field.annotation, default=field.value, kind=griffe.ParameterKind.keyword_only
                )
    this = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    return griffe.Function("__init__", parameters=griffe.Parameters(this, *fields.values()), returns="None")
