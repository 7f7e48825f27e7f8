"""Recognisers of secrets: keys and tokens by their prefix, private keys, and values of keys that name a secret. Pure.

Prefixes and lengths are those that the issuers publish. A secret with neither prefix nor name looks like any identifier
and is not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from palimpsest.privacy import Span
from palimpsest.privacy.recognisers import languages
from palimpsest.privacy.recognisers.nested import nested_values
from palimpsest.privacy.recognisers.scanning import Scan
from palimpsest.privacy.recognisers.secret_names import NAMED, PASSWORDS, secret_word

# --- keys and tokens

_KEY = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])                            # AWS
    | gh[pousr]_[A-Za-z0-9]{36,255} | github_pat_[A-Za-z0-9_]{22,255} | ghs_[0-9]{1,20}_eyJ[\w-]+\.[\w-]+\.[\w-]+
    | gl(?:pat|rt|rtr|dt|ptt|cbt|oas|soat|ft|imt|agent|ffct)-[\w-]{20,}(?:\.[0-9a-z]{2}\.[A-Za-z0-9]{7,12})?
    | sk-[\w-]{20,} | gsk_[A-Za-z0-9]{20,} | xai-[A-Za-z0-9]{20,} | pplx-[A-Za-z0-9]{20,} | r8_[A-Za-z0-9]{30,}
    | hf_[A-Za-z0-9]{30,} | AIza[\w-]{35} | ya29\.[\w-]{20,} | AQ\.Ab8[\w-]{30,} | GOCSPX-[\w-]{28} | tvly-[\w-]{20,}
    | nvapi-[\w-]{60,} | lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10} | pcsk_[\w]{40,} | sk_[a-f0-9]{48}
    | hv[bs]\.[\w-]{24,} | dckr_[op]at_[\w-]{27,} | dapi[a-f0-9]{32}(?:-[0-9])?(?![A-Za-z0-9])
    | ntn_[A-Za-z0-9]{40,} | PMAK-[a-f0-9]{24}-[a-f0-9]{34} | sb_secret_[\w-]{20,} | sbp_[a-f0-9]{40} | figd_[\w-]{36,}
    | pscale_(?:tkn|pw|oauth)_[\w-]{32,} | dp\.(?:pt|st|ct|sa|scim|audit)\.[\w-]{40,} | NRAK-[A-Z0-9]{27}
    | xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16} | sntry(?:s_[\w-]{40,}|u_[a-f0-9]{64}) | rubygems_[a-f0-9]{48}
    | nfp_[A-Za-z0-9]{36,} | tskey-[a-z]{2,12}-[\w-]{20,} | pat[A-Za-z0-9]{14}\.[a-f0-9]{64}
    | phx_[A-Za-z0-9]{40,} | e2b_[a-f0-9]{40} | csk-[a-z0-9]{40,} | jina_[\w-]{50,}
    | ATATT3[\w-]{100,} | CCIPAT_[\w]{40,} | HRKU-[\w-]{36,} | AGE-SECRET-KEY-1[A-Z0-9]{58}
    | xox[abceoprs]-[A-Za-z0-9-]{15,} | xapp-[A-Za-z0-9-]{15,}       # Slack
    | [sr]k_(?:live|test)_[A-Za-z0-9]{10,} | whsec_[\w]{20,}        # Stripe
    | SG\.[\w-]{16,64}\.[\w-]{16,64} | npm_[A-Za-z0-9]{36} | pypi-[\w-]{16,} | do[opr]_v1_[a-f0-9]{64}
    | shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32} | glsa_[\w]{32,} | glc_eyJ[\w-]{30,} | sq0[a-z]{3}-[\w-]{20,}
    | lin_api_[A-Za-z0-9]{30,}
    | (?<=[0-9]:)AA[\w-]{30,}                                       # Telegram, behind the number of a bot
    | (?<![\w-])eyJ[\w-]{8,}\.(?:[\w-]{8,}\.[\w-]*|(?=\.[\w-]{8}))(?:\.[\w-]+){0,3}   # JSON web tokens, encrypted, too
    )""",
    re.VERBOSE | re.ASCII,
)
_LETTERS = re.compile("[A-Za-z]{20}")
_HOOK = re.compile(
    r"hooks\.slack\.com/(?:services|workflows)/[\w/-]{20,}|(?<![A-Za-z0-9])xoxd-[\w%+/=-]{20,}", re.ASCII
)
"""Slack's secrets that have other characters than words have."""

_PREFIXES = (
    r"A[KS]IA|gh[pousr]_|github_pat_|gl(?:pat|rtr?|dt|ptt|cbt|oas|soat|ft|imt|agent|ffct)-|[rs]k[_-]|gsk_|xai-|pplx-|r8_"
    r"|hf_|AIza|ya29\.|AQ\.Ab8|GOCSPX-|tvly-|nvapi-|lsv2_|pcsk_|hv[bs]\.|dckr_[op]at_|dapi|ntn_|PMAK-|sb_secret_|sbp_"
    r"|xkeysib-|sntry[su]_|rubygems_|nfp_|tskey-|pat[A-Za-z0-9]{14}\.|phx_|e2b_|csk-|jina_"
    r"|figd_|pscale_|dp\.[a-z]{2,5}\.|NRAK-|ATATT3|CCIPAT_|HRKU-|AGE-SECRET-KEY-1|xox[abceoprs]-|xapp-"
    r"|whsec_|SG\.|npm_|pypi-|do[opr]_v1_|shp(?:at|ca|pa|ss)_|glsa_|glc_eyJ|sq0[a-z]{3}-|lin_api_|eyJ"
)
API_KEY_SIGN = rf"(?:^|[^0-9A-Za-z])(?:{_PREFIXES})[\w-]{{8}}|[0-9]:AA[\w-]{{30}}|hooks\.slack|xoxd-"
"""The prefix of every alternative of `_KEY`, and a few of the characters behind it."""


def may_be_api_key(scan: Scan) -> bool:
    """Return whether the text has a word as long as a key, or the address of a webhook, whose words may be shorter."""
    return bool(scan.long_words) or "hooks.slack" in scan.text or "xoxd-" in scan.text


def api_keys(scan: Scan) -> Iterator[Span]:
    """Find keys and tokens of services by their prefix and length.

    Only those count that have a digit, as real ones do, or many letters in a row. The others are names of something.
    """
    text = scan.text
    for start, end in scan.long_words:
        for match in _KEY.finditer(text, start, end):
            key = match.group()
            if any(map(str.isdigit, key[3:])) or _LETTERS.search(key):
                yield Span(*match.span(), "api_key")
    if "hooks.slack" in text or "xoxd-" in text:
        for match in _HOOK.finditer(text):
            yield Span(*match.span(), "api_key")


# --- private keys

_ARMOUR = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_BODY = re.compile(r"[A-Za-z0-9+/=\s\\:,.]*")
_MOST_BODY = 65_536


def private_keys(scan: Scan) -> Iterator[Span]:
    """Find private keys in PEM or PGP armour, with or without its end."""
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

_NAME_BEFORE, _NAME_AFTER = re.compile(r"[\w.-]*"), re.compile(r"[\w.-]{0,64}", re.ASCII)
_ASSIGNS = re.compile(
    r"""\\{0,3}["'`*\])]{0,3}\s{0,4}"""
    rf"(?:=>|:=|==?|\uff1d|[:\uff1a](?:(?:\*{{1,3}}|__)(?=\s))?|\b(?i:ist?|est?|{languages.SAYS})\b:?|[{languages.SAYS_BEHIND}])\s{{0,4}}"
)
_OF_TYPE = re.compile(
    r"\??:\s{0,2}(?:(?:Final|Optional|Option)?[<\[]?(?:str|String|string|bytes|SecretStr|Final|&str)[>\]]?)"
    r"(?:\s{0,2}\|\s{0,2}(?:None|null|undefined))?\s{0,2}=\s{0,4}(?=[bBfFrRuU]{0,2}[\"'`])"
)
"""What assigns a quoted value to a name with a type, in code."""
_EQUAL = frozenset("=\uff1d")
_FLAG = re.compile(r"[ \t]{1,4}")
_SCHEME = re.compile(r"(?:bearer|basic|token|digest|apikey|negotiate)\s{1,4}", re.IGNORECASE)
_TAGGED = re.compile(r"(?:\s[^<>]{0,256})?>\s{0,4}([^<>]{1,4096}?)\s{0,4}</")
_QUOTE = re.compile(r"""(?:[bBfFrRuU]{1,2}(?=["']))?(\\{0,3})(\"{3}|'{3}|["'`])""")
_BARE = re.compile(r"""[^\s"'`,;&<>(){}\[\]\\\u3001\u3002\u300c-\u300f\uff01\uff08\uff09\uff0c\uff1b\uff1f]{1,4096}""")
_GLANCE = 128
"""How many characters of a value that follows a word such as "is" are looked at first, if they are not all ASCII."""
_BEARER = re.compile(r"(?<!\w)bearer\s{1,4}([\w.~+/=-]{16,4096})", re.ASCII)
_USER_INFO = re.compile(r"://[^\s/:@?#\"'<>]{0,256}:([^\s/\"'<>]{1,256})@")
"""Up to the last "@", since a password may contain one."""
_COOKIE = re.compile(r"cookie\\{0,3}[\"']?\s{0,4}:\s{0,4}\\{0,3}[\"']?([^\s=;,:\"'<>\\]{1,64}=[^\r\n\"'<>\\]{4,4096})")
_SIGNED = re.compile(r"[?&](?:sig|signature|x-amz-signature|x-goog-signature)=([\w%+/=.~-]{10,4096})", re.ASCII)
_LOGIN = re.compile(r"\s(?:-u|--user|--proxy-user)[ =]?[\"']?([^\s:\"'/@]{1,64}):([^\s\"'`;|&]{1,256})")
_NEAR = 256
_MYSQL = re.compile(r"mysql\w*(?:[ \t]+[^\s;|&]{1,64}){0,8}?[ \t]+-p([^\s\"';|&]{3,256})")
_SQL = re.compile(
    r"\b(?:create|alter)\s{1,4}(?:user|role|login)\b[^;]{1,200}?"
    r"\b(?:identified\s{1,4}(?:with\s{1,4}\S{1,64}\s{1,4})?by|password)\s{1,4}'((?:[^']|''){1,256})'",
    re.IGNORECASE,
)
"""A password in an SQL statement that creates or changes a login."""
_PIN = re.compile(
    r"(?:\bPIN(?:[ _-]?(?i:code|number|nummer|kode?|код))?|\b(?i:pin[ _-]?(?:code|number)))\b"
    r"\\{0,3}[\"']?(?:\s{0,4}[:=\uff1a\uff1d]\s{0,4}|\s{1,4}(?i:ist?|est?)\s{1,4})\\{0,3}[\"']?"
    r"([0-9]{4,8})(?![\w.,:/-]{0,64}[0-9])"
)
_NO_VALUES = (
    "none null nil true false undefined str string int bool bytes optional any text number object required empty "
    "unset missing wrong invalid expired unknown hidden changeme todo tbd yes no not the and"
)
_NOTHING = frozenset(_NO_VALUES.split())
_ONE_WORD = (
    "bitte nada please incorrect forgotten forgot reset changed protected encrypted enabled disabled weak strong "
    "redacted masked same default below above see prompt on off set boolean varchar"
)
_SAID = frozenset(_ONE_WORD.split())
"""Single words that state something about a password in a line of their own, and are none."""
_ENDS_LINE = re.compile(r"""[ \t]*["'`]?[ \t]*(?=[\r\n]|\Z)""")
_PROSE = re.compile(r"[^\W\d_]{1,15}[.!?:)]?")
_PLAIN_WORD = re.compile(r"[^\W\d_]?[a-z]*|[A-Z]+")
"""What may be prose behind "Basic" and "Bearer": base64 mixes lower and upper case."""
_DIGIT = re.compile(r"\d")
_TYPED = re.compile("[!-~]{4}")
_CODE = re.compile(
    r"[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)+|\$?\{{1,2} ?[\w.]{1,64} ?\}{1,2}|\{% ?[\w.]{1,64} ?%\}"
    r"|\$\w+|%\w+%?|(?:%[sdr]\W?)+|\*+|\.+|x{3,}|_+|-+",
    re.IGNORECASE,
)

CREDENTIAL_SIGN = (
    r"(?i)token|authorization|secret|(?:api|private|ssh|access|account)[ _-]?key|credential"
    r"|pass(?:wo|wd|phr|code|e?(?:$|[^a-z]))|pwd|pw(?:$|[^a-z])|bearer|://[^\s/:@#\"'<>]*:[^\s/\"'<>]+@|cookie|sig=|signature=|curl|mysql|identified\s+(?:by|with)"
    rf"|(?:^|[^0-9a-z_])pin(?:_?(?:code|number|nummer|kod)|[^0-9a-z_])|{languages.SIGN}"
)


def credentials(scan: Scan) -> Iterator[Span]:
    """Find values of keys that name a secret (`password = …`, `"apiKey": "…"`), bearer tokens, passwords in URLs.

    Any quoted value counts. A value without quotes must not look like a word of prose, a type or code.
    """
    text, lower, end = scan.text, scan.lower, 0
    names = [match.span() for match in NAMED.finditer(lower)]
    if languages.may_name(text, lower):
        names = sorted([*names, *languages.password_names(text, lower)])
    for first, last in names:
        if first >= end:
            value = _value_of(text, first, last)
            if value is not None:
                end = value.end
                yield value
    yield from nested_values(text, names)
    if "bearer" in lower:
        for match in _BEARER.finditer(lower):
            yield Span(*match.span(1), "credential")
    if "@" in text and "://" in text:
        for match in _USER_INFO.finditer(text):
            yield Span(*match.span(1), "credential")
    yield from _in_commands(text, lower)


def _in_commands(text: str, lower: str) -> Iterator[Span]:
    """Find cookies of requests, signatures in URLs, logins in commands and for databases, and PINs."""
    if "cookie" in lower:
        yield from _first_groups(_COOKIE, lower)
    if "sig=" in lower or "signature=" in lower:
        yield from _first_groups(_SIGNED, lower)
    if "mysql" in lower:
        yield from _first_groups(_MYSQL, text)
    if "identified" in lower or "password" in lower:
        yield from _first_groups(_SQL, text)
    if "pin" in lower:
        yield from _first_groups(_PIN, text)
    if "curl" in lower:
        for match in _LOGIN.finditer(text):
            if "curl" in lower[max(match.start() - _NEAR, 0) : match.start()] and not match[2].isdecimal():
                yield Span(*match.span(2), "credential")


def _first_groups(pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    """Yield a credential for the first group of each match."""
    return (Span(*match.span(1), "credential") for match in pattern.finditer(text))


def may_hold_credential(scan: Scan) -> bool:
    """Return whether the text may assign a value, and has a word of a secret, a bearer token or a user."""
    lower = scan.lower
    named = (
        ("key" in lower or "token" in lower or "pass" in lower or "cre" in lower)  # secret, credential
        or ("authorization" in lower or "bearer" in lower)
        or ("pw" in lower or "identified" in lower or ("@" in lower and "://" in lower))
        or ("cookie" in lower or "curl" in lower or "mysql" in lower or "pin" in lower)
        or ("=" in lower and ("sig=" in lower or "signature=" in lower))
    )
    return scan.may_assign and (named or languages.may_name(scan.text, lower))


def _value_of(text: str, start: int, end: int) -> Span | None:
    """Return the span of the value assigned to the name that has the secret word from `start` to `end` in it."""
    name_start = start - len(_NAME_BEFORE.match(text[max(start - 64, 0) : start][::-1]).group())  # type: ignore[union-attr]
    name_end = _NAME_AFTER.match(text, end).end()  # type: ignore[union-attr]
    name = text[name_start:name_end]
    word = secret_word(name)
    if word is None:
        return None
    assigns = _OF_TYPE.match(text, name_end) or _ASSIGNS.match(text, name_end)
    if assigns is None and name.startswith("--"):
        assigns = _FLAG.match(text, name_end)
    if assigns is None:
        return _tagged(text, name_start, name_end, word)
    quote = _QUOTE.match(text, assigns.end())
    if word == "pass" and (quote is None or not _begins(text, name_start, "{,")):
        return None
    return _quoted(text, quote, word) if quote is not None else _unquoted(text, name_start, assigns, word)


def _unquoted(text: str, name_start: int, assigns: re.Match[str], word: str) -> Span | None:
    """Return the span of a value without quotes."""
    place = assigns.end()
    scheme = _SCHEME.match(text, place)
    place = scheme.end() if scheme is not None else place
    spoken = any(map(str.isalpha, assigns.group()))
    glance = _BARE.match(text, place, place + _GLANCE) if spoken else None
    # Mostly a sentence of a script without spaces. Checking its beginning first avoids looking at all the rest of it
    # for each name that it contains.
    sentence = glance.group() if glance is not None and not glance.group().isascii() else ""
    if sentence and not _is_secret(sentence, word, certain=True, spoken=True):
        return None
    bare = _BARE.match(text, place)
    if bare is None or text[bare.end() : bare.end() + 1] in ("(", "["):
        return None
    value = bare.group().rstrip(".!?:")
    if text[name_start : assigns.start()].lower().endswith(value.lower()) and secret_word(value) is not None:
        return None  # code: `self.password = password`
    certain = scheme is not None or not _EQUAL.isdisjoint(assigns.group()) or _is_line(text, name_start, bare)
    if not (scheme is not None and _is_login(value)) and not _is_secret(value, word, certain=certain, spoken=spoken):
        return None
    return Span(place, place + len(value), "credential")


def _tagged(text: str, start: int, end: int, word: str) -> Span | None:
    """Return the span of the text between the tags of an element with such a name."""
    element = _TAGGED.match(text, end) if text[start - 1 : start] == "<" else None
    if element is None or not _is_secret(element[1], word, certain=True, spoken=False):
        return None
    return Span(*element.span(1), "credential")


def _begins(text: str, start: int, behind: str = "") -> bool:
    """Return whether the place `start` begins its line or a list item, or follows one of the characters of `behind`."""
    before = text[max(start - 64, 0) : start].rstrip(" \t\\\"'`>*-")
    return before[-1:] in ("", "\n", "\r", *behind)


def _is_line(text: str, start: int, value: re.Match[str]) -> bool:
    """Return whether the name at `start` and its value, one word, make up a whole line: `password: letmein`."""
    word, end = value.group(), value.end()
    if not _PROSE.fullmatch(word) or not word.isalpha() or word.lower() in _SAID or "\n" in text[start:end]:
        return False
    return _ENDS_LINE.match(text, end) is not None and _begins(text, start)


def _quoted(text: str, quote: re.Match[str], word: str) -> Span | None:
    """Return the span of the text between quotes of one kind, or up to the end of the line if they are not closed."""
    start, mark = quote.end(), quote[1] + quote[2]
    line = text.find("\n", start, start + 4096)
    stop = line if line >= 0 else min(start + 4096, len(text))
    end = text.find(mark, start, stop)
    while end > 0 and not quote[1] and text[end - 1] == "\\":
        end = text.find(mark, end + 1, stop)
    end = stop if end < 0 else end
    scheme = _SCHEME.match(text, start, end)
    start = scheme.end() if scheme is not None else start
    value = text[start:end]
    if not value.strip() or value.lower() in _NOTHING or _CODE.fullmatch(value):
        return None
    if len(value) == 1 and word not in PASSWORDS:  # such as HTML's `accesskey`
        return None
    return Span(start, end, "credential")


def _is_login(value: str) -> bool:
    """Return whether a value behind a scheme such as "Bearer" is a secret: any that is not prose, a type or code."""
    return len(value) >= 4 and not _PLAIN_WORD.fullmatch(value) and not _CODE.fullmatch(value)


def _is_secret(value: str, word: str, *, certain: bool, spoken: bool) -> bool:
    """Return whether a value without quotes is a secret.

    After "=" a word may be a password, after ":" only if the line has nothing else, and after "is" it must have digits
    and letters. A value that is not ASCII is a secret if it has some ASCII characters, or letters of a script with
    capitals.
    """
    digits = _DIGIT.search(value) is not None
    if spoken and not (digits and any(map(str.isalpha, value))):
        return False
    if not value.isascii() and not _TYPED.search(value):
        return (digits or certain) and value.lower() != value.upper()
    if len(value) < (3 if certain else 4) or value.lower() in _NOTHING or _CODE.fullmatch(value):
        return False
    if word in PASSWORDS:
        return certain or not _PROSE.fullmatch(value)
    return digits or len(value) >= 16
