"""An error that is pickled or copied keeps its class, message and attributes."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from palimpsest import Memory, errors
from palimpsest.errors.mistakes import Mistake
from palimpsest.errors.secret import Secret
from palimpsest.errors.wording import shorten
from palimpsest.runtime.threads import Suspended
from palimpsest.summaries import Rejected
from palimpsest.summaries.models.resilience import Failure

GIVEN: dict[str, Any] = {
    "cause": KeyError("a"),
    "entry": 7,
    "mistakes": [Mistake("a.yaml", 1, 2, "chat", "max_tokens", "-1", "more than 0", None)],
    "needed": 10,
    "opened_in": 1,
    "parts": {"system": 3},
    "problems": ["one", "two"],
    "revision": 3,
    "seconds": 2.5,
    "used_in": 2,
}
"""What parameters are given that are no text."""

KINDS = [
    *(getattr(errors, name) for name in errors.__all__ if name != "PalimpsestWarning"),
    Failure,
    Rejected,
    Suspended,
]


class Strange(Exception):
    """An error of another library that can be pickled but not unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def made(kind: type[Exception]) -> Exception:
    """Return an error of a class with a value for each parameter."""
    if kind is errors.PalimpsestError:
        return errors.PalimpsestError("something")
    asked = inspect.signature(kind).parameters.values()
    arguments = [GIVEN.get(one.name, one.name) for one in asked if one.kind is not one.KEYWORD_ONLY]
    options = {one.name: one.name for one in asked if one.kind is one.KEYWORD_ONLY}
    return kind(*arguments, **options)


def sent(fault: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    """Return an error as another process receives it."""
    return pickle.loads(pickle.dumps(fault, protocol))  # noqa: S301 (it is ours)


def told(fault: BaseException) -> tuple[Any, ...]:
    """Return all that a program can see of an error."""
    facts = {name: repr(value) for name, value in vars(fault).items()}
    return type(fault), str(fault), fault.args, facts, getattr(fault, "msg", None)


@pytest.mark.parametrize("again", [sent, lambda fault: sent(fault, 0), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_pickling_and_copying(kind: type[Exception], again: Callable[[Any], Any]) -> None:
    """An error that was sent, or copied, has its class, its message, its facts and its notes."""
    fault = made(kind)
    fault.add_note("while it was tried")

    twin = again(fault)

    assert twin is not fault
    assert told(twin) == told(fault)


def test_a_redacted_error_message_is_sent_redacted() -> None:
    """A redacted message is sent redacted, not built again from the attributes."""
    fault = errors.Conflict("a", "b")
    fault.args = ("[REDACTED]",)

    assert str(sent(fault)) == "[REDACTED]"


def test_an_unpicklable_attribute_is_sent_as_its_repr() -> None:
    """An attribute that cannot be pickled is sent as its repr, and a secret stays hidden."""
    function = errors.ConfigError("tokenizer", lambda text: text, "a name")
    strange = errors.ConditionFailed("1 < a", Strange("a", "b"))
    keyed = errors.ConfigError("keys", Secret(b"swordfish"), "bytes")

    for fault, fact in ((function, "found"), (strange, "cause"), (keyed, "found")):
        twin = sent(fault)

        assert str(twin) == str(fault)
        assert getattr(twin, fact) == shorten(getattr(fault, fact))
    assert b"swordfish" not in pickle.dumps(keyed)


def test_a_process_pool_survives_an_error_of_a_worker() -> None:
    """An error in a worker of a process pool is raised in the parent, and the pool goes on."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for number in range(2):
            with pytest.raises(errors.ConfigError, match=f"nowhere{number}"):
                pool.submit(Memory.open, f"nowhere{number}://").result()


def test_a_long_option_value_is_searched_for_secrets_in_linear_time() -> None:
    """Text without capital letters, too, whose every word might begin a key: each is looked at by itself."""
    text = "中文 word " * 100_000
    key = "aB" * 21 + "a"

    assert errors.ConfigError("summarizer", text, "a name").found == text
    assert key not in errors.ConfigError("summarizer", f"{key} {text}{key}=", "a name").found
