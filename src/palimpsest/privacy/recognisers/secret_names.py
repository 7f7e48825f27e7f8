"""Names of keys that say that the value is a secret, in English and in other languages. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from palimpsest.privacy.recognisers import languages

_SECRET_WORDS = (
    *("api key", "apikey", "token", "authorization", "secret", "private key", "ssh key", "access key", "account key"),
    *("password", "credential"),
    *("passwd", "passphrase", "passcode", "pwd", "pw", "passwort", "passe", "pass"),
)
PASSWORDS = frozenset(_SECRET_WORDS[_SECRET_WORDS.index("password") :]) - {"credential"}
"""Names of secrets that people choose themselves: the value may be an ordinary word."""

_DOORS = (
    "admin api app auth become cert db database email ftp git http imap jwt keystore ldap login mail mongo my mysql pg "
    "postgres postgresql proxy rabbitmq redis root secret smtp sql ssh sudo svc user vpn wifi wlan"
)
_OPENED = frozenset(_DOORS.split())
"""Words that make a password of a "pass" behind them. `first_pass` and `bypass` are no passwords."""

_JOINED = re.compile(
    r" (?!no)[a-z]+?(?:(token|secret|passw(?:or[dt]|d)|passphrase|passcode|pwd)"
    r"|(?:api|access|account|private|secret)key) "
    rf"| (?:{'|'.join(sorted(_OPENED))})pass | secretkey "
)
"""Words written as one: `PGPASSWORD`, `authtoken`, `dbpass`; but not sudo's `NOPASSWD`."""

_PLACES = frozenset(
    (
        *("page", "next", "previous", "prev", "continuation", "pagination", "starting", "sync", "delta", "cursor"),
        *("eos", "bos", "pad", "unk", "mask", "sep", "cls"),
    )
)
"""What makes the token behind it no credential: a place in a list, or a mark of a model's vocabulary."""

_FIGURES = frozenset(
    (
        *("count", "counts", "limit", "limits", "usage", "budget", "length", "size", "type", "index", "ttl"),
        *("expiry", "expires", "expiration", "cost", "price"),
    )
)
"""What makes a key that ends with it say something about a secret or a token, and not what it is."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@lru_cache(maxsize=4096)
def secret_word(key: str, *, strict: bool = False) -> str | None:
    """Return the word of a key that names a secret, such as "api key" for `X-Api-Key` and `apiKeyId`, or None.

    Words count as a whole, or at the end of a compound; camel case and punctuation separate words. `tokens` and
    `secretary` name no secret, and neither do `nextPageToken` and `token_count`, unless this is `strict`. "pass" is
    returned only for a key that has no other word; its value may also say that a test passed.
    """
    parts = " ".join(_WORD.findall(languages.folded(key))).lower().split()
    word = _word_in(key, parts)
    return None if word is not None and not strict and _is_harmless(word, parts) else word


def _is_harmless(word: str, parts: Sequence[str]) -> bool:
    """Return whether the words of a key say that its value is no secret after all."""
    if len(parts) > 1 and parts[-1] in _FIGURES:
        return True
    if word != "token":
        return False
    at = parts.index("token") if "token" in parts else 0
    return (parts[at - 1] if at else parts[0].removesuffix("token")) in _PLACES


def _word_in(key: str, parts: Sequence[str]) -> str | None:
    """Return the word of a key that names a secret, whatever else the key says."""
    words = f" {' '.join(parts)} "
    word = next((word for word in _SECRET_WORDS if f" {word} " in words), None)
    if word == "pass":
        opens = parts[-1] == "pass" and _OPENED.intersection(parts)
        return "password" if opens else word if parts == ["pass"] else None
    if word in ("access key", "account key"):
        return word if parts[-1] != "name" else None
    if word is not None:
        return word
    joined = _JOINED.search(words)
    if joined is not None:
        return "token" if joined[1] == "token" else "secret" if joined[0].endswith("key ") else "password"
    return "password" if languages.is_password_name(key, words) else None


NAMED = re.compile(
    r"api[ _-]?key|token|authorization|secret|(?:private|ssh|access|account)[ _-]?key|credential"
    r"|pass(?:wor[dt]|wd|phrase|code|e\b|(?![a-z]))|pwd|pw(?![a-z])"
)
"""Over text in lower-case ASCII: where the word of such a name may be; `secret_word` decides about the whole name."""
