"""Recognisers of secrets: keys and tokens by their prefix, private keys, and values of keys that name a secret. Pure.

Prefixes and lengths are those that the issuers publish. What has neither prefix nor name looks like any identifier and
is not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from palimpsest.privacy import Span
from palimpsest.privacy.scanning import Scan

# --- keys and tokens

_KEY = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])                            # AWS
    | gh[pousr]_[A-Za-z0-9]{36,255} | github_pat_[A-Za-z0-9_]{22,255} | glpat-[\w-]{20,}
    | sk-[\w-]{20,} | gsk_[A-Za-z0-9]{20,} | xai-[A-Za-z0-9]{20,} | pplx-[A-Za-z0-9]{20,} | r8_[A-Za-z0-9]{30,}
    | hf_[A-Za-z0-9]{30,} | AIza[\w-]{35} | ya29\.[\w-]{20,} | tvly-[\w-]{20,}
    | xox[abeoprs]-[A-Za-z0-9-]{15,} | xapp-[A-Za-z0-9-]{15,}       # Slack
    | [sr]k_(?:live|test)_[A-Za-z0-9]{10,} | whsec_[\w]{20,}        # Stripe
    | SG\.[\w-]{16,64}\.[\w-]{16,64} | npm_[A-Za-z0-9]{36} | pypi-[\w-]{16,} | dop_v1_[a-f0-9]{64}
    | shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32} | glsa_[\w]{32,} | sq0[a-z]{3}-[\w-]{20,} | lin_api_[A-Za-z0-9]{30,}
    | (?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*                     # JSON web tokens
    )""",
    re.VERBOSE | re.ASCII,
)
_HOOK = re.compile(r"hooks\.slack\.com/(?:services|workflows)/[\w/-]{20,}", re.ASCII)


def api_keys(scan: Scan) -> Iterator[Span]:
    """Find keys and tokens of services by their prefix and length, with a digit in them, as real ones have."""
    text = scan.text
    for start, end in scan.long_words:
        for match in _KEY.finditer(text, start, end):
            found = match.group()
            if any(map(str.isdigit, found[3:])):
                yield Span(*match.span(), "api_key")
    if "hooks.slack" in text:
        for match in _HOOK.finditer(text):
            yield Span(*match.span(), "api_key")


# --- private keys

_ARMOUR = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_BODY = re.compile(r"[A-Za-z0-9+/=\s\\:,.]*")
_MOST_BODY = 65_536


def private_keys(scan: Scan) -> Iterator[Span]:
    """Find private keys in PEM or PGP armour, with or without the end of it."""
    text, end = scan.text, 0
    while (start := text.find("-----BEGIN", end)) >= 0:
        head = _ARMOUR.match(text, start)
        end = start + 10
        if head is None:
            continue
        foot = text.find("-----", head.end(), head.end() + _MOST_BODY)
        end = _BODY.match(text, head.end()).end()  # type: ignore[union-attr]
        if foot >= 0 and text.startswith("-----END", foot):
            closing = text.find("-----", foot + 8, foot + 80)
            end = closing + 5 if closing >= 0 else foot + 8
        yield Span(start, end, "private_key")


# --- values of keys that name a secret

_SECRET_WORDS = (
    *("api key", "apikey", "token", "authorization", "secret", "private key", "ssh key", "password", "credential"),
    *("passwd", "passphrase", "pwd"),
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@lru_cache(maxsize=4096)
def secret_word(key: str) -> str | None:
    """Return the word of a key that names a secret, such as "api key" of `X-Api-Key` and `apiKeyId`, or None.

    Words count whole; camel case and punctuation separate them. `tokens` and `secretary` name none.
    """
    words = f" {' '.join(_WORD.findall(key)).lower()} "
    return next((word for word in _SECRET_WORDS if f" {word} " in words), None)


_NAMED = re.compile(
    r"api[ _-]?key|token|authorization|secret|private[ _-]?key|ssh[ _-]?key|passw(?:or)?d|passphrase|pwd|credential"
)
_NAME_BEFORE, _NAME_AFTER = re.compile(r"[\w.-]*"), re.compile(r"[\w.-]{0,64}", re.ASCII)
_ASSIGNS = re.compile(r"""\\{0,3}["'\])]{0,2}\s{0,4}(?:=>|:=|==?|:|\bis\b:?)\s{0,4}""")
_FLAG = re.compile(r"[ \t]{1,4}")
_SCHEME = re.compile(r"(?:bearer|basic|token|digest|apikey|negotiate)\s{1,4}", re.IGNORECASE)
_QUOTE = re.compile(r"""(\\{0,3})(["'`])""")
_BARE = re.compile(r"""[^\s"'`,;&<>(){}\[\]\\]{1,4096}""")
_BEARER = re.compile(r"(?<!\w)bearer\s{1,4}([\w.~+/=-]{16,4096})", re.ASCII)
_USER_INFO = re.compile(r"://[^\s/:@?#\"'<>]{0,256}:([^\s/@\"'<>]{1,256})@")
_NO_VALUES = (
    "none null nil true false undefined str string int bool bytes optional any text number object required empty "
    "unset missing wrong invalid expired unknown hidden changeme todo tbd yes no not the and"
)
_NOTHING = frozenset(_NO_VALUES.split())
_PROSE = re.compile(r"[A-Za-z]{1,15}[.!?:)]?")
_CODE = re.compile(r"[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)+|\$\{?\w+\}?|%\w+%?|\*+|\.+|x{3,}|_+|-+", re.IGNORECASE)


def credentials(scan: Scan) -> Iterator[Span]:
    """Find values of keys that name a secret (`password = …`, `"apiKey": "…"`), bearer tokens, passwords in addresses.

    A value in quotes counts whatever it is; one without must not look like a word of prose, a type or code.
    """
    text, lower, end = scan.text, scan.lower, 0
    for match in _NAMED.finditer(lower):
        if match.start() >= end:
            value = _value_of(text, *match.span())
            if value is not None:
                end = value.end
                yield value
    if "bearer" in lower:
        for match in _BEARER.finditer(lower):
            yield Span(*match.span(1), "credential")
    if "@" in text and "://" in text:
        for match in _USER_INFO.finditer(text):
            yield Span(*match.span(1), "credential")


def may_hold_credential(scan: Scan) -> bool:
    """Whether something could be given a value, and a name of a secret, a bearer or a user is there."""
    if not scan.may_assign:
        return False
    lower = scan.lower
    return (
        ("key" in lower or "token" in lower or "pass" in lower or "cre" in lower)  # secret, credential
        or ("authorization" in lower or "bearer" in lower)
        or ("pwd" in lower or ("@" in lower and "://" in lower))
    )


def _value_of(text: str, start: int, end: int) -> Span | None:
    """The value of the name that the secret word from `start` to `end` is part of."""
    name_start = start - len(_NAME_BEFORE.match(text[max(start - 64, 0) : start][::-1]).group())  # type: ignore[union-attr]
    name_end = _NAME_AFTER.match(text, end).end()  # type: ignore[union-attr]
    name = text[name_start:name_end]
    word = secret_word(name)
    if word is None:
        return None
    assigns = _ASSIGNS.match(text, name_end)
    if assigns is None and name.startswith("--"):
        assigns = _FLAG.match(text, name_end)
    if assigns is None:
        return None
    place = assigns.end()
    quote = _QUOTE.match(text, place)
    if quote is not None:
        return _quoted(text, quote)
    scheme = _SCHEME.match(text, place)
    place = scheme.end() if scheme is not None else place
    bare = _BARE.match(text, place)
    if bare is None or text[bare.end() : bare.end() + 1] in ("(", "["):
        return None
    value = bare.group().rstrip(".!?:")
    certain = scheme is not None or "=" in assigns.group()
    if not _is_secret(value, word, certain=certain, spoken="is" in assigns.group()):
        return None
    return Span(place, place + len(value), "credential")


def _quoted(text: str, quote: re.Match[str]) -> Span | None:
    """What stands between quotes of one kind; up to the end of the line where nothing closes them."""
    start, mark = quote.end(), quote.group()
    line = text.find("\n", start, start + 4096)
    stop = line if line >= 0 else min(start + 4096, len(text))
    end = text.find(mark, start, stop)
    while end > 0 and mark == quote.group(2) and text[end - 1] == "\\":
        end = text.find(mark, end + 1, stop)
    end = stop if end < 0 else end
    scheme = _SCHEME.match(text, start, end)
    start = scheme.end() if scheme is not None else start
    value = text[start:end]
    if not value.strip() or value.lower() in _NOTHING or _CODE.fullmatch(value):
        return None
    return Span(start, end, "credential")


def _is_secret(value: str, word: str, *, certain: bool, spoken: bool) -> bool:
    """Whether a value without quotes is one.

    After "=" a word may be a password, after ":" it is rather prose, and after "is" there must be digits and letters.
    """
    if spoken and not (any(map(str.isdigit, value)) and any(map(str.isalpha, value))):
        return False
    if len(value) < (3 if certain else 4) or value.lower() in _NOTHING or _CODE.fullmatch(value):
        return False
    if word.startswith("pass") or word == "pwd":
        return certain or not _PROSE.fullmatch(value)
    return any(map(str.isdigit, value)) or len(value) >= 16
