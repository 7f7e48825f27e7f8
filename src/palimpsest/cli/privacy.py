"""The privacy policy of a command: a preset's name or a JSON file, with the key for pseudonyms."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import click

from palimpsest.cli.app import PRIVACY
from palimpsest.errors import ConfigError, PrivacyRefused, nearest
from palimpsest.privacy.policy import Policy, load, rules_of
from palimpsest.privacy.pseudonyms import MIN_KEY
from palimpsest.privacy.recognisers.built_in import PRESETS
from palimpsest.privacy.redaction import Redactor

ENVIRONMENT, KEY = "PALIMPSEST_PRIVACY", "PALIMPSEST_PSEUDONYM_KEY"


def redactor() -> Redactor | None:
    """Return a redactor for the policy that `--privacy`, or else PALIMPSEST_PRIVACY, names; None if neither is given.

    Raises ConfigError for a name that is neither a preset nor a file, for a file that holds no policy, and if the
    policy uses pseudonyms and PALIMPSEST_PSEUDONYM_KEY holds no key that is long enough.
    """
    option = click.get_current_context().meta.get(PRIVACY)
    given, where = (option, "--privacy") if option is not None else (os.environ.get(ENVIRONMENT), ENVIRONMENT)
    if given is None:
        return None
    policy = Policy(recognisers=given) if given in PRESETS else load(read_policy(given, where), given)
    return redactor_of(policy, given)


def telling(redactor: Redactor | None) -> Callable[[str], str] | None:
    """Return a function that redacts a text and never raises; None without a policy.

    For a text that the policy cannot check it returns a remark in its place.
    """
    if redactor is None:
        return None

    def redacted(text: str) -> str:
        try:
            return redactor.text(text)
        except PrivacyRefused as refusal:
            return f"[not shown: it could not be checked for what is private ({refusal.rule}, {refusal.kind})]"

    return redacted


def redactor_of(policy: Policy, named: str) -> Redactor:
    """Return a redactor for the policy, with the key of PALIMPSEST_PSEUDONYM_KEY if it uses pseudonyms.

    `named` is the policy's name or file, for the ConfigError about a missing key.
    """
    if not any(use.pseudonym for use in rules_of(policy).uses):
        return Redactor(policy)
    key = os.environ.get(KEY, "").encode("utf-8", "surrogateescape")
    if len(key) < MIN_KEY:
        found = f"a key of {len(key)} bytes" if key else "no key"
        raise ConfigError(KEY, found, f"at least {MIN_KEY} bytes, for the pseudonyms of {named}")
    return Redactor(policy, key=key)


def read_policy(given: str, where: str) -> dict[str, Any]:
    """Return the policy that a JSON file holds. Raises ConfigError if it holds none; `where` names the option."""
    try:
        with open(given, encoding="utf-8-sig") as file:
            policy = json.load(file)
    except (FileNotFoundError, IsADirectoryError):
        allowed = f"{', '.join(PRESETS)}, or a JSON file with a policy"
        raise ConfigError(where, given, allowed, nearest=nearest(given, PRESETS)) from None
    except OSError as fault:
        raise ConfigError(where, given, f"a file that can be read ({fault.strerror})") from None
    except json.JSONDecodeError as fault:
        raise ConfigError(f"{given}:{fault.lineno}:{fault.colno}", fault.msg, "valid JSON") from None
    except (UnicodeDecodeError, RecursionError):
        raise ConfigError(where, given, "a file with JSON in UTF-8") from None
    if not isinstance(policy, dict):
        raise ConfigError(given, type(policy).__name__, "an object with the fields of a policy")
    return policy
