"""Which texts may be ids: of sessions, tenants, users and views, and scopes, which are paths of ids. Pure."""

from __future__ import annotations

from palimpsest.errors import ConfigError

MAX_ID = 256
"""Most characters of an id."""

ID_RULE = f"text of 1 to {MAX_ID} characters without control characters or lone surrogates"


def is_id(text: str) -> bool:
    """Whether a text can be an id: 1 to 256 characters, no control characters, no lone surrogates."""
    if not 0 < len(text) <= MAX_ID:
        return False
    return text.isprintable() or not any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in text)


def check_id(text: object, where: str) -> None:
    """Raise ConfigError unless `text` is 1 to 256 characters without control characters or lone surrogates."""
    if not isinstance(text, str) or not is_id(text):
        raise ConfigError(where, text, ID_RULE)


def check_scope(name: object, where: str = "scope") -> None:
    """Raise ConfigError unless `name` is a scope: an id, or a path of ids with "/" between them."""
    if not isinstance(name, str) or len(name) > 2 * MAX_ID or not all(map(is_id, name.split("/"))):
        allowed = f"an id, or a path of ids such as 'user/ann', of at most {2 * MAX_ID} characters"
        raise ConfigError(where, name, allowed)
