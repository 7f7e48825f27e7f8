"""Conditions: short expressions over a message, its interaction and its session. Pure.

What may be written is decided here, once, at load; simpleeval, its tables cut to the same list, computes the
answer. A path (`message.metadata.lang`) becomes one node and is looked up here, by mapping key only: simpleeval
never meets an attribute, a name or a live object. Lists and tuples are one kind. The functions:

    len(x)              characters of a text, items of a list, keys of a mapping; 0 for None
    lower(x)            the text in lower case, or the list with each item so; None stays None
    contains(x, part)   part of a text, item of a list, key of a mapping; None contains nothing, nor is it in a text
    startswith(x, part) the text begins with `part`, or with one of a list of parts; a list does if an item does
    endswith(x, part)   the same for the end; None neither begins nor ends with anything
    any_of(x, a, b)     x contains a or b (a number: equals); `any_of(x, [a, b])` is the same; None is never found
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import Signature, signature
from typing import Any

from palimpsest.errors import ConditionFailed, ConfigError, nearest, shorten

MAX_CHARACTERS, MAX_NODES, MAX_DEPTH = 1_000, 100, 20
FIELDS = {
    "message": (
        *("role", "name", "content", "content_length", "tokens", "index", "age", "timestamp", "tool_name", "tags"),
        *("tool_status", "has_tool_calls", "metadata", "kind", "pinned", "is_summary"),
    ),
    "interaction": (
        *("index", "age", "tokens", "message_count", "tool_names", "tool_errors", "has_tools", "started_at"),
        *("ended_at", "metadata"),
    ),
    "session": ("id", "message_count", "interaction_count", "tokens", "metadata"),
}
_ROLES: dict[object, str] = {"human": "user", "ai": "assistant", "function": "tool", "developer": "system"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A checked expression; `parse` makes it. Two conditions of the same text are equal.

    `names` are those of message, interaction and session that it uses. `per_message` says that it is asked of
    each message rather than of an interaction. `dynamic` says that the answer for one entry can change as the
    log grows: it uses `message.index`, `message.age`, or anything of the interaction or session.
    """

    text: str
    names: frozenset[str]
    per_message: bool
    dynamic: bool
    _tree: ast.expr = field(repr=False, compare=False)

    def holds(self, values: Mapping[str, Mapping[str, object]]) -> bool:
        """Return whether the condition is true of `values`, which map each of `names` to a plain mapping.

        A declared field that is missing is None, and so is a key of metadata, at any depth. The work is at most 100
        steps, each linear in what it touches. Any thread may call this at any time. Raises ConditionFailed when
        there is no answer (`None < 3`, an index out of range) or one of the mappings is missing.
        """
        evaluator = _evaluator()
        outer, evaluator.names = evaluator.names, values
        try:
            return bool(evaluator.eval(self.text, self._tree))
        except Exception as error:  # whatever the values provoke is one answer: the caller keeps the entry
            raise ConditionFailed(self.text, error) from error
        finally:
            evaluator.names = outer


def parse(text: str, where: str = "conditions") -> Condition:
    """Return the condition that `text` states. `where` names the option that it stands in.

    Raises ConfigError, which quotes the expression and the column, for whatever is not one expression of the
    language, names what does not exist, or exceeds 1,000 characters, 100 nodes (every name, key, constant, list,
    call and operation is one) or a nesting depth of 20.
    """
    if not isinstance(text, str):
        raise ConfigError(where, text, "a condition as text, such as \"message.role != 'tool'\"")
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(where, text, f"at most {MAX_CHARACTERS:,} characters (there are {len(text):,})")
    check = _Check(text.strip(), where)
    tree = check.visit(check.read())
    _evaluator()  # a missing simpleeval shows at load, not at the first message
    names = frozenset(root for root, _ in check.used)
    dynamic = not names <= {"message"} or not check.used.isdisjoint({("message", "index"), ("message", "age")})
    return Condition(text=check.text, names=names, per_message="message" in names, dynamic=dynamic, _tree=tree)


@cache
def _takes(name: str) -> Signature:
    """What a function of the language is called with."""
    return signature(_FUNCTIONS[name])


class _Path(ast.expr):
    """`message.metadata['lang']` as one node: the root name and the keys below it."""

    root: str
    keys: tuple[str | int, ...]


class _Check(ast.NodeTransformer):
    """Refuses all that the language has not, turns each chain of keys into one `_Path`, reads role aliases."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.used: set[tuple[str, str | int]] = set()  # (root, field)

    def fault(self, at: ast.expr | tuple[int, int], allowed: str, near: str | None = None) -> ConfigError:
        """Return the config error for the node, or the (line, column), `at`. Columns count characters from 1."""
        lines = re.split(r"\r\n?|\n", self.text)  # as Python's tokenizer splits them
        if isinstance(at, ast.expr):
            part = f", at {shorten(ast.get_source_segment(self.text, at), 40)}"
            line, column = at.lineno, len(lines[at.lineno - 1].encode()[: at.col_offset].decode()) + 1
        else:
            part, (line, column) = "", at
        place = f"column {column}" if len(lines) == 1 else f"line {line}, column {column}"
        return ConfigError(f"{self.where}, {place}{part}", self.text, allowed, nearest=near)

    def read(self) -> ast.expr:
        """Return the tree of the text, within the caps. Goes level by level, as the depth is not yet known."""
        try:
            tree = ast.parse(self.text, "<condition>", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # also NUL, surrogates, deep nesting
            place = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or len(self.text) + 1
            raise self.fault(place, f"one complete expression of {_LANGUAGE}") from error
        level, nodes, depth = [tree], 0, 0
        while level:
            nodes, depth = nodes + len(level), depth + 1
            if nodes > MAX_NODES or depth > MAX_DEPTH:
                raise self.fault(tree, f"at most {MAX_NODES} nodes, nested at most {MAX_DEPTH} deep")
            level = [each for node in level for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return tree

    def visit(self, node: ast.AST) -> Any:
        match node:
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._path(node)
            case ast.Call():
                return self._call(node)
            case ast.Compare():
                return self._comparison(node)
            case ast.UnaryOp() | ast.BinOp() if not isinstance(node.op, ast.Not):
                known = isinstance(node.op, ast.Add | ast.Sub | ast.UAdd | ast.USub)
                parts = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.Constant | ast.List | ast.Tuple)]
                if not known or not all(isinstance(getattr(n, "value", None), int | float) for n in parts):
                    raise self.fault(node, "`+` and `-`, on numbers, and no other arithmetic")
            case ast.Constant(value=value) if not isinstance(value, str | int | float | None):
                raise self.fault(node, "constants that are text, numbers, True, False or None")
            case ast.expr() if not isinstance(node, _NODES):
                raise self.fault(node, _LANGUAGE)
        return self.generic_visit(node)

    def _comparison(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for op, left, right in zip(node.ops, [node.left, *node.comparators], node.comparators, strict=False):
            if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
                _read_roles([left, right])
            elif isinstance(op, ast.Is | ast.IsNot) and getattr(right, "value", "") is not None:
                raise self.fault(node, "`is None` and `is not None`; `==` and `!=` compare values")
        return node

    def _call(self, node: ast.Call) -> ast.expr:
        name = getattr(node.func, "id", "")
        if name not in _FUNCTIONS:
            near = nearest(name or getattr(node.func, "attr", ""), _FUNCTIONS)
            raise self.fault(node, f"of functions {_CALLS}, and no methods", near)
        takes = _takes(name)
        try:
            takes.bind(*node.args, **{each.arg or "": each for each in node.keywords})
        except TypeError:
            raise self.fault(node, f"{name}({', '.join(takes.parameters)})") from None
        node.args = [self.visit(each) for each in node.args]
        if name in ("contains", "any_of"):
            _read_roles(node.args)
        return node

    def _path(self, node: ast.Name | ast.Attribute | ast.Subscript) -> _Path:
        chain: list[ast.expr] = [node]
        while isinstance(chain[0], ast.Attribute | ast.Subscript):
            chain.insert(0, chain[0].value)
        base, *links = chain
        root = getattr(base, "id", "")
        if root not in FIELDS:
            raise self.fault(base, f"fields of {_ROOTS}, and calls of {_CALLS}", nearest(root, [*FIELDS, *_FUNCTIONS]))
        name, *below = [self._key(each) for each in links] or [""]
        if name not in FIELDS[root]:
            allowed = f"the fields of {root}: {', '.join(FIELDS[root])}"
            raise self.fault(chain[:2][-1], allowed, nearest(name, FIELDS[root]))
        if name != "metadata" and any(isinstance(key, str) for key in below):
            raise self.fault(node, f"no key below {root}.{name}: of all fields only metadata has keys")
        self.used.add((root, name))
        path = _Path()
        path.root, path.keys = root, (name, *below)
        return path

    def _key(self, node: ast.expr) -> str | int:
        match node:
            case ast.Attribute(attr=name) if not name.startswith("_"):
                return name
            case ast.Subscript(slice=ast.Constant(value=str() | int() as key)) if not isinstance(key, bool):
                return key
            case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as index))):
                return -index
        raise self.fault(node, "keys as in metadata.lang (no `_` first), metadata['_lang'] and tags[0]")


def _read_roles(operands: list[ast.expr]) -> None:
    """Make role aliases canonical in what is compared with `message.role`: constants and lists of them."""
    if any(isinstance(each, _Path) and (each.root, each.keys) == ("message", ("role",)) for each in operands):
        for each in [item for operand in operands for item in getattr(operand, "elts", [operand])]:
            if isinstance(each, ast.Constant):
                each.value = _ROLES.get(each.value, each.value)


def _look_up(values: Mapping[str, Mapping[str, object]], path: _Path) -> object:
    found: Any = values[path.root]
    for key in path.keys:
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(key, int) and isinstance(found, list | tuple | str):
            found = found[key]
        elif found is not None:
            raise TypeError(f"a value of type {type(found).__name__} has no key {key!r}")
    return list(found) if isinstance(found, tuple) else found  # so that it can equal a literal


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left + right
    raise TypeError(f"+ adds numbers, not {type(left).__name__} and {type(right).__name__}")


def _parts(*given: Any) -> tuple[Any, ...]:
    parts = [each for one in given for each in (one if isinstance(one, list) else [one]) if each is not None]
    if len(parts) > MAX_NODES:  # they may come from the values, and each is looked for
        raise ValueError(f"at most {MAX_NODES} parts may be looked for, not {len(parts)}")
    return tuple(parts)


def _lower(x: Any, /) -> Any:
    return [_lower(item) for item in x] if isinstance(x, list) else None if x is None else str.lower(x)


def _contains(x: Any, part: Any, /) -> bool:
    return not (x is None or (part is None and isinstance(x, str))) and part in x


def _affix(test: Callable[..., bool], x: Any, part: Any, /) -> bool:
    parts = _parts(part)
    return any(item is not None and test(item, parts) for item in (x if isinstance(x, list) else [x]))


def _any_of(x: Any, part: Any, /, *more: Any) -> bool:
    if isinstance(x, str):
        return any(isinstance(each, str) and each in x for each in _parts(part, *more))
    return any(each in x if isinstance(x, list | Mapping) else each == x for each in _parts(part, *more))


def _evaluator() -> Any:
    """Return the evaluator of this thread: it holds the names of a run, and costs more to build than a run."""
    found: Any = getattr(_thread, "evaluator", None)
    if found is None:
        from simpleeval import DEFAULT_OPERATORS, EvalWithCompoundTypes  # type: ignore[import-untyped]  # lazy: 13 ms

        found = EvalWithCompoundTypes({kind: DEFAULT_OPERATORS[kind] for kind in _STOCK}, {}, {})
        found.operators[ast.Add] = _add  # the stock one joins text and lists; the stock `-` takes numbers only
        found.functions = _FUNCTIONS
        found.nodes = {kind: found.nodes[kind] for kind in _NODES} | {ast.Tuple: found.nodes[ast.List]}
        found.nodes[_Path] = lambda path: _look_up(found.names, path)
        _thread.evaluator = found
    return found


_thread = threading.local()
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": lambda x, /: 0 if x is None else len(x),
    "lower": _lower,
    "contains": _contains,
    "startswith": partial(_affix, str.startswith),
    "endswith": partial(_affix, str.endswith),
    "any_of": _any_of,
}
_NODES = (ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.IfExp, ast.Constant, ast.List, ast.Tuple, ast.Call)
_STOCK = (
    *(ast.Not, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot),
    *(ast.Sub, ast.UAdd, ast.USub),
)
_ROOTS, _CALLS = ", ".join(FIELDS), ", ".join(_FUNCTIONS)
_LANGUAGE = (
    "comparisons, `in`, `is None`, and, or, not, `x if c else y`, `+` and `-` on numbers, constants, lists and "
    f"tuples, fields of {_ROOTS}, and the functions {_CALLS}"
)
