"""Errors lose private text, wherever they keep it, and are otherwise unchanged."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from inspect import isfunction
from typing import Any

import pytest

from palimpsest import AsyncMemory, AsyncSession, ConfigError, Redactor
from palimpsest.errors import MissingExtra, PrivacyRefused
from palimpsest.runtime.hushing import quietly, redact_error

SECRET = "walrus"


def told(text: str) -> str:
    """Return the text without the secret."""
    return text.replace(SECRET, "…")


def everything(fault: BaseException) -> str:
    """Return everything that an error says and keeps."""
    fields = [getattr(fault, name, None) for name in ("msg", "object", "doc", "filename", "strerror")]
    return f"{''.join(traceback.format_exception(fault))} {fault.args!r} {vars(fault)!r} {fields!r}"


def raised(fault: BaseException, cause: BaseException | None = None) -> BaseException:
    """Raise and return the error."""
    with pytest.raises(type(fault)) as caught:
        raise fault from cause
    return caught.value


def no_json() -> BaseException:
    """Return an error that keeps a whole document."""
    with pytest.raises(ValueError) as failed:  # noqa: PT011 (whatever it says)
        json.loads(f"{{{SECRET}")
    return failed.value


def noted() -> BaseException:
    """Return an error with a note."""
    fault = ValueError("x")
    fault.add_note(f"it was {SECRET}")
    return fault


@pytest.mark.parametrize(
    "fault",
    [
        ConfigError(f"a.{SECRET}", {"x": [SECRET]}, f"no {SECRET}", nearest=SECRET),
        MissingExtra(SECRET, "pii"),
        ValueError(f"it was {SECRET}", [SECRET], (SECRET, 1), {SECRET: 1}),
        UnicodeEncodeError("utf-8", f"\ud800 {SECRET}", 0, 1, "surrogates"),
        UnicodeDecodeError("utf-8", f"\xff {SECRET}".encode("latin-1"), 0, 1, "no UTF-8"),
        OSError(2, f"no {SECRET}", f"a/{SECRET}"),
        no_json(),
        noted(),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_arguments_fields_notes_and_causes_of_errors_are_redacted(fault: BaseException) -> None:
    """Arguments, fields, notes and what built-in errors keep besides are redacted, in causes, too."""
    assert SECRET in everything(fault)
    outer = raised(ConfigError("a", 1, "b"), fault)
    redact_error(outer, told)
    assert outer.__cause__ is None
    assert SECRET not in everything(outer)

    redact_error(fault, told)
    assert SECRET not in everything(fault)


def test_errors_without_private_text_stay_unchanged() -> None:
    """Fields of such errors stay the same objects, and causes are kept."""
    found = ["x"]
    fault = raised(ConfigError("a", found, "b"), KeyError("harmless"))
    redact_error(fault, told)

    assert isinstance(fault, ConfigError)
    assert fault.found is found
    assert str(fault.__cause__) == "'harmless'"


def test_distant_causes_and_groups_are_redacted() -> None:
    """Private text is found in distant causes, contexts and groups of errors."""
    group = ExceptionGroup("several", [ValueError("x"), ValueError(f"it was {SECRET}")])
    fault = raised(ConfigError("a", 1, "b"), raised(KeyError("x"), group))
    redact_error(fault, told)

    assert fault.__cause__ is None
    assert fault.__context__ is None


class Spoken(Exception):
    """An error whose message is made from an attribute."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body

    def __str__(self) -> str:
        return f"the service said: {self.body['message']} ({self.body['code']})"


class Slotted(LookupError):
    """An error that keeps its text in a slot that cannot be changed."""

    __slots__ = ("_said",)

    def __init__(self, said: str) -> None:
        self._said = said

    def __str__(self) -> str:
        return f"it said {self._said}"


class Shown(ValueError):
    """An error whose repr shows more than its message."""

    def __repr__(self) -> str:
        return f"Shown({SECRET})"


def test_a_mapping_kept_by_an_error_stays_a_mapping() -> None:
    """A mapping in a field of an error stays a mapping with its keys."""
    fault = Spoken({"message": f"no {SECRET} here", "code": 7})
    redact_error(fault, told)

    assert str(fault) == "the service said: no … here (7)"


def test_a_mapping_in_an_error_is_redacted_by_its_keys() -> None:
    """A mapping in an error is redacted by its keys, too."""
    fault = ValueError({"password": "swordfish", "host": "a"})
    redact_error(fault, Redactor("default").text)

    assert "swordfish" not in everything(fault)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Slotted(SECRET), LookupError),
        (Shown(SECRET), ValueError),
        (ExceptionGroup("several", [ValueError("x"), KeyError(SECRET)]), ExceptionGroup),
        (ExceptionGroup(f"of {SECRET}", [ValueError("x")]), ExceptionGroup),
        (ExceptionGroup("several", [ExceptionGroup("more", [Slotted(SECRET)])]), ExceptionGroup),
        (SyntaxError("bad", ("a", 1, 1, SECRET)), SyntaxError),
        (ImportError("no module", name=SECRET, path=SECRET), ImportError),
    ],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_an_error_that_cannot_be_redacted_is_replaced_by_a_builtin(fault: Exception, kind: type[Exception]) -> None:
    """An error that cannot be redacted is replaced by a built-in error that is its base class."""
    with pytest.raises(kind) as caught, quietly(told):
        raise fault

    shown = "".join(traceback.TracebackException.from_exception(caught.value, lookup_lines=False).format())
    shown = "".join(line for line in shown.splitlines() if "  File " not in line)
    assert SECRET not in f"{shown} {caught.value!r} {caught.value} {vars(caught.value)} {caught.value.args}"
    assert caught.value.__context__ is None
    assert kind.__name__ == type(caught.value).__name__


def test_privacy_refused_keeps_its_message() -> None:
    """PrivacyRefused keeps its message, which never holds text."""
    fault = PrivacyRefused("redact_patterns[0]", "timeout", "it takes too long")
    redact_error(fault, lambda text: "unchecked")

    assert (fault.rule, fault.kind) == ("redact_patterns[0]", "timeout")
    assert "it takes too long" in str(fault)


@pytest.mark.parametrize("core", [AsyncMemory, AsyncSession])
def test_every_verb_is_wrapped_once_to_redact_its_errors(core: type) -> None:
    """Each public function of a memory and a session is wrapped exactly once to redact its errors."""
    verbs = {name: verb for name, verb in vars(core).items() if isfunction(verb) and not name.startswith("_")}

    layers = {name: len(list(_unwrapped(verb))) for name, verb in verbs.items()}

    assert verbs
    assert {name: number for name, number in layers.items() if number != 1} == {}


def _unwrapped(verb: Any) -> Iterator[object]:
    while (verb := getattr(verb, "__wrapped__", None)) is not None:
        yield verb
