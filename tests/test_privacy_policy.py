"""The forms of a privacy policy, and how an invalid one is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from palimpsest.errors import ConfigError
from palimpsest.privacy import Span
from palimpsest.privacy.policy import Pattern, Policy, Use, load, rules_of
from palimpsest.privacy.recognisers.built_in import BUILT_IN
from palimpsest.privacy.redaction import Redactor

SSN = r"\b\d{3}-\d{2}-\d{4}\b"


def names(text: str) -> list[Span]:
    """Find every "Ann"."""
    return [Span(i, i + 3, "name") for i in range(len(text)) if text.startswith("Ann", i)]


def uses(given: Any) -> dict[str, Use]:
    return {use.name: use for use in rules_of(Policy(recognisers=given)).uses}


def test_an_empty_policy_redacts_nothing() -> None:
    """None, an empty mapping and an empty policy redact nothing."""
    for given in (None, {}, Policy()):
        rules = rules_of(load(given))

        assert not rules.redacts
        assert not rules.types
        assert Redactor(given).text("bob@example.com, 123-45-6789") == "bob@example.com, 123-45-6789"


def test_the_documented_example_policy_loads() -> None:
    """A policy from YAML loads its patterns, types and redaction string."""
    given = {
        "redact_patterns": [SSN],
        "non_persistable_message_types": ["payment_info"],
        "default_redaction_string": "[SSN]",
    }

    assert Redactor(load(given)).text("My SSN is 123-45-6789") == "My SSN is [SSN]"


def test_a_pattern_may_bring_its_own_string() -> None:
    """A pattern may have its own string, as a pair, a mapping or a `Pattern`; the others use the policy's."""
    policy = Policy(
        redact_patterns=["one", ("two", "[2]"), {"pattern": "three", "redaction_string": "[3]"}, Pattern("four", "[4]")]
    )

    assert Redactor(policy).text("one two three four") == "[REDACTED] [2] [3] [4]"


@pytest.mark.parametrize("given", ["email", ["email"], {"email": True}, [Use("email")]])
def test_a_recogniser_is_asked_for_by_name(given: Any) -> None:
    """A recogniser is named alone, in a list or in a mapping."""
    assert uses(given) == {"email": Use("email")}


def test_names_in_a_mapping_win_over_presets_before_them() -> None:
    """Names in a mapping override presets: a recogniser can be off, or have its own string or pseudonyms."""
    found = uses({"default": True, "phone": False, "card": "[CARD]", "email": "pseudonym"})

    assert found.keys() == BUILT_IN.keys() - {"phone"}
    assert found["card"] == Use("card", "[CARD]")
    assert found["email"] == Use("email", pseudonym=True)
    assert uses({"default": "pseudonym"})["ip"].pseudonym
    assert uses("secrets").keys() == {"private_key", "credential", "api_key"}


def test_any_callable_is_a_further_recogniser() -> None:
    """Any callable is a recogniser, under its own name in a list or the given one in a mapping."""
    assert uses(["email", names])["names"].find is names
    assert uses({"people": names}) == {"people": Use("people", find=names)}
    assert uses({"people": (names, "[WHO]")})["people"].redaction_string == "[WHO]"
    assert uses({"people": (names, "pseudonym")})["people"].pseudonym
    assert Redactor({"recognisers": [names, "email"]}).text("Ann, ann@example.com") == "[REDACTED], [REDACTED]"


REFUSED: list[tuple[Any, str, str]] = [
    ({"redact_pattern": []}, "privacy_policy.redact_pattern", "did you mean 'redact_patterns'"),
    ({"redact_patterns": ["ok", "(a+)+"]}, "privacy_policy.redact_patterns[1]", "exponentially"),
    ({"redact_patterns": ["[invalid("]}, "privacy_policy.redact_patterns[0]", "valid regular expression"),
    ({"redact_patterns": "abc"}, "privacy_policy.redact_patterns", "a list of regular expressions"),
    ({"redact_patterns": {"a": "b"}}, "privacy_policy.redact_patterns", "a list of regular expressions"),
    ({"redact_patterns": [7]}, "privacy_policy.redact_patterns[0]", "regular expression as text"),
    ({"redact_patterns": [("a", "b", "c")]}, "privacy_policy.redact_patterns[0]", "and its redaction string"),
    (
        {"redact_patterns": [("a", " ")]},
        "privacy_policy.redact_patterns[0].redaction_string",
        "a text that is not blank",
    ),
    ({"redact_patterns": [{"patern": "a"}]}, "privacy_policy.redact_patterns[0].patern", "did you mean 'pattern'"),
    ({"redact_patterns": [{"redaction_string": "a"}]}, "privacy_policy.redact_patterns[0]", "as text"),
    ({"default_redaction_string": ""}, "privacy_policy.default_redaction_string", "a text that is not blank"),
    ({"non_persistable_message_types": "system"}, "privacy_policy.non_persistable_message_types", "a list of"),
    ({"non_persistable_message_types": ["a", 1]}, "privacy_policy.non_persistable_message_types[1]", "as text"),
    ({"recognisers": ["emial"]}, "privacy_policy.recognisers[0]", "did you mean 'email'"),
    ({"recognisers": "all"}, "privacy_policy.recognisers", "default"),
    ({"recognisers": 3}, "privacy_policy.recognisers", "names of recognisers"),
    ({"recognisers": [3]}, "privacy_policy.recognisers[0]", "callable"),
    ({"recognisers": {"emails": True}}, "privacy_policy.recognisers.emails", "did you mean 'email'"),
    ({"recognisers": {"email": 3}}, "privacy_policy.recognisers.email", "pseudonym"),
    ({"recognisers": {"email": ""}}, "privacy_policy.recognisers.email", "a text that is not blank"),
    ({"recognisers": {"email": names}}, "privacy_policy.recognisers.email", "no built-in recogniser has"),
    (7, "privacy_policy", "a Policy, a mapping with its fields, or a preset's name"),
    ("defualt", "privacy_policy.recognisers", "did you mean 'default'"),
]


@pytest.mark.parametrize(("given", "where", "says"), REFUSED, ids=[where for _, where, _ in REFUSED])
def test_an_invalid_policy_is_refused_with_place_and_allowed_values(given: Any, where: str, says: str) -> None:
    """An error names key and index, what is allowed, and the nearest name."""
    with pytest.raises(ConfigError) as caught:
        load(given)

    assert caught.value.where == where
    assert says in str(caught.value)


def test_the_place_in_an_error_begins_with_the_resource_key_of_the_policy() -> None:
    """The place in an error begins with the key of the resource that holds the policy."""
    with pytest.raises(ConfigError, match=r"^memory\.privacy\.redact_patterns\[0\]: "):
        load({"redact_patterns": ["("]}, "memory.privacy")


@pytest.mark.parametrize(
    "given",
    [
        {"redact_patterns": ["RED"]},
        {"redact_patterns": [r"\w+"]},
        {"redact_patterns": ["a", (r"\d", "<5>")]},
        {"redact_patterns": ["secret"], "recognisers": {"email": "a secret address"}},
    ],
)
def test_a_redaction_string_that_a_pattern_matches_is_refused(given: Any) -> None:
    """A redaction string that a pattern matches is refused: it would be redacted again and again."""
    with pytest.raises(ConfigError, match="does not match"):
        load(given)


@pytest.mark.parametrize("key", [None, b"short", "a text, no bytes that"])
def test_pseudonyms_need_a_key(key: Any) -> None:
    """Pseudonyms need a key of at least 16 bytes, and the error does not repeat a shorter one."""
    with pytest.raises(ConfigError, match="at least 16 bytes") as caught:
        Redactor({"recognisers": {"email": "pseudonym"}}, key=key)

    assert "short" not in str(caught.value)
    assert "bytes that" not in str(caught.value)


def test_importing_privacy_loads_no_engine() -> None:
    """Importing `palimpsest.privacy` loads no engine and no policy code."""
    heavy = "re2", "regex", "ipaddress", "json", "palimpsest.privacy.policy"
    code = f"import sys, palimpsest.privacy\nprint([name for name in {heavy} if name in sys.modules])"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout.strip() == "[]"
