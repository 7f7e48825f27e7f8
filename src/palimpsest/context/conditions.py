"""Conditions: short expressions over a message, its interaction and its session. Pure.

What may be written is decided here, once, when a condition is loaded. simpleeval, with its tables cut down to the same
list, computes the answer. A path such as `message.metadata.lang` becomes one node and is looked up here by mapping keys
only, so simpleeval never meets an attribute, a name or a live object. Lists and tuples are treated alike. The
functions:

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
    """A checked expression, made by `parse`. Two conditions with the same text are equal.

    `names` says which of message, interaction and session the expression uses. `per_message` is set if it is evaluated
    for each message rather than for an interaction. `dynamic` is set if the answer for one entry can change as the log
    grows: the expression uses `message.index`, `message.age`, or anything of the interaction or session.
    """

    text: str
    names: frozenset[str]
    per_message: bool
    dynamic: bool
    _tree: ast.expr = field(repr=False, compare=False)

    def holds(self, values: Mapping[str, Mapping[str, object]]) -> bool:
        """Return whether the condition is true of `values`, which maps each of `names` to a plain mapping.

        A declared field that is missing is None, and so is a missing key of metadata at any depth. The work is at most
        100 steps, each linear in the size of what it touches. Thread-safe. Raises ConditionFailed if there is no answer
        (`None < 3`, an index out of range) or if one of the mappings is missing.
        """
        evaluator = _evaluator()
        outer, evaluator.names = evaluator.names, values
        try:
            return bool(evaluator.eval(self.text, self._tree))
        except Exception as error:  # whatever the values cause is handled alike: the caller keeps the entry
            raise ConditionFailed(self.text, error) from error
        finally:
            evaluator.names = outer


def parse(text: str, where: str = "conditions") -> Condition:
    """Return the condition that `text` states. `where` names the option that holds it.

    Raises ConfigError, which quotes the expression and the column, if the text is not one expression of the language,
    uses an unknown name, or exceeds 1,000 characters, 100 nodes (every name, key, constant, list, call and operation is
    one) or a nesting depth of 20.
    """
    if not isinstance(text, str):
        raise ConfigError(where, text, "a condition as text, such as \"message.role != 'tool'\"")
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(where, text, f"at most {MAX_CHARACTERS:,} characters (there are {len(text):,})")
    check = _Check(text.strip(), where)
    tree = check.visit(check.read())
    _evaluator()  # raises now if simpleeval is not installed, and not at the first message
    names = frozenset(root for root, _ in check.used)
    dynamic = not names <= {"message"} or not check.used.isdisjoint({("message", "index"), ("message", "age")})
    return Condition(text=check.text, names=names, per_message="message" in names, dynamic=dynamic, _tree=tree)


@cache
def _signature_of(name: str) -> Signature:
    """Return the signature of a function of the language."""
    return signature(_FUNCTIONS[name])


class _Path(ast.expr):
    """`message.metadata['lang']` as one node: the root name and the keys below it."""

    root: str
    keys: tuple[str | int, ...]


class _Check(ast.NodeTransformer):
    """Refuses what the language does not have, turns each chain of keys into one `_Path`, and resolves role aliases."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.used: set[tuple[str, str | int]] = set()  # (root, field)

    def fault(self, at: ast.expr | tuple[int, int], allowed: str, near: str | None = None) -> ConfigError:
        """Return the ConfigError for a node or a (line, column). Columns count characters from 1."""
        lines = re.split(r"\r\n?|\n", self.text)  # as Python's tokenizer splits them
        if isinstance(at, ast.expr):
            part = f", at {shorten(ast.get_source_segment(self.text, at), 40)}"
            line, column = at.lineno, len(lines[at.lineno - 1].encode()[: at.col_offset].decode()) + 1
        else:
            part, (line, column) = "", at
        place = f"column {column}" if len(lines) == 1 else f"line {line}, column {column}"
        return ConfigError(f"{self.where}, {place}{part}", self.text, allowed, nearest=near)

    def read(self) -> ast.expr:
        """Parse the text within the caps. The tree is walked level by level, since recursion might exceed the stack."""
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
            level = [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
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
                is_sum = isinstance(node.op, ast.Add | ast.Sub | ast.UAdd | ast.USub)
                literals = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.Constant | ast.List | ast.Tuple)]
                if not is_sum or not all(isinstance(getattr(n, "value", None), int | float) for n in literals):
                    raise self.fault(node, "`+` and `-`, on numbers, and no other arithmetic")
            case ast.Constant(value=value) if not isinstance(value, str | int | float | None):
                raise self.fault(node, "constants that are text, numbers, True, False or None")
            case ast.expr() if not isinstance(node, _NODES):
                raise self.fault(node, _LANGUAGE)
        return self.generic_visit(node)

    def _comparison(self, node: ast.Compare) -> ast.AST:
        """Check a comparison: roles are canonical, and `is` compares only with None."""
        self.generic_visit(node)
        for op, left, right in zip(node.ops, [node.left, *node.comparators], node.comparators, strict=False):
            if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
                _read_roles([left, right])
            elif isinstance(op, ast.Is | ast.IsNot) and getattr(right, "value", "") is not None:
                raise self.fault(node, "`is None` and `is not None`; compare values with `==` and `!=`")
        return node

    def _call(self, node: ast.Call) -> ast.expr:
        """Check a call: a known function with arguments that it takes."""
        name = getattr(node.func, "id", "")
        if name not in _FUNCTIONS:
            near = nearest(name or getattr(node.func, "attr", ""), _FUNCTIONS)
            raise self.fault(node, f"calls of the functions {_CALLS}, but not of methods", near)
        parameters = _signature_of(name)
        try:
            parameters.bind(*node.args, **{arg.arg or "": arg for arg in node.keywords})
        except TypeError:
            raise self.fault(node, f"{name}({', '.join(parameters.parameters)})") from None
        node.args = [self.visit(arg) for arg in node.args]
        if name in ("contains", "any_of"):
            _read_roles(node.args)
        return node

    def _path(self, node: ast.Name | ast.Attribute | ast.Subscript) -> _Path:
        """Turn a chain of names, attributes and subscripts into one `_Path` of a known field."""
        chain: list[ast.expr] = [node]
        while isinstance(chain[0], ast.Attribute | ast.Subscript):
            chain.insert(0, chain[0].value)
        base, *links = chain
        root = getattr(base, "id", "")
        if root not in FIELDS:
            raise self.fault(base, f"fields of {_ROOTS}, and calls of {_CALLS}", nearest(root, [*FIELDS, *_FUNCTIONS]))
        name, *below = [self._key(link) for link in links] or [""]
        if name not in FIELDS[root]:
            allowed = f"the fields of {root}: {', '.join(FIELDS[root])}"
            raise self.fault(chain[:2][-1], allowed, nearest(name, FIELDS[root]))
        if name != "metadata" and any(isinstance(key, str) for key in below):
            raise self.fault(node, f"{root}.{name} without a key: of all fields only metadata has keys")
        self.used.add((root, name))
        path = _Path()
        path.root, path.keys = root, (name, *below)
        return path

    def _key(self, node: ast.expr) -> str | int:
        """Return the key of one link in a chain."""
        match node:
            case ast.Attribute(attr=name) if not name.startswith("_"):
                return name
            case ast.Subscript(slice=ast.Constant(value=str() | int() as key)) if not isinstance(key, bool):
                return key
            case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as index))):
                return -index
        raise self.fault(node, "keys as in metadata.lang (no `_` first), metadata['_lang'] and tags[0]")


def _read_roles(operands: list[ast.expr]) -> None:
    """Replace role aliases by the canonical roles in constants that are compared with `message.role`, also in lists."""
    if any(isinstance(each, _Path) and (each.root, each.keys) == ("message", ("role",)) for each in operands):
        for each in [item for operand in operands for item in getattr(operand, "elts", [operand])]:
            if isinstance(each, ast.Constant):
                each.value = _ROLES.get(each.value, each.value)


def _look_up(values: Mapping[str, Mapping[str, object]], path: _Path) -> object:
    """Return the value of a path, by mapping keys and list indices only. A missing key gives None."""
    value: Any = values[path.root]
    for key in path.keys:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(key, int) and isinstance(value, list | tuple | str):
            value = value[key]
        elif value is not None:
            raise TypeError(f"a value of type {type(value).__name__} has no key {key!r}")
    return list(value) if isinstance(value, tuple) else value  # a tuple would not equal a list literal


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left + right
    raise TypeError(f"+ adds numbers, not {type(left).__name__} and {type(right).__name__}")


def _parts(*given: Any) -> tuple[Any, ...]:
    parts = [part for arg in given for part in (arg if isinstance(arg, list) else [arg]) if part is not None]
    if len(parts) > MAX_NODES:  # lists may come from the values, and each part costs one search
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
    """Return this thread's evaluator. It holds the names of the run, and building one costs more than a run."""
    evaluator: Any = getattr(_thread, "evaluator", None)
    if evaluator is None:
        from simpleeval import DEFAULT_OPERATORS, EvalWithCompoundTypes  # type: ignore[import-untyped]  # lazy: 13 ms

        evaluator = EvalWithCompoundTypes({kind: DEFAULT_OPERATORS[kind] for kind in _STOCK}, {}, {})
        evaluator.operators[ast.Add] = _add  # the stock `+` joins text and lists; the stock `-` takes numbers only
        evaluator.functions = _FUNCTIONS
        evaluator.nodes = {kind: evaluator.nodes[kind] for kind in _NODES} | {ast.Tuple: evaluator.nodes[ast.List]}
        evaluator.nodes[_Path] = lambda path: _look_up(evaluator.names, path)
        _thread.evaluator = evaluator
    return evaluator


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
