"""Labels: words in a text, or keys of JSON, that say what is behind them: `phone:`, `SSN`, `Cookie:`. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

_BEGINS = r"(?:(?<![A-Za-z0-9])|(?-i:(?<=[a-z])(?=[A-Z])))"
"""Before a label: no letter and no digit, unless a capital shows where a word begins (`homePhone`)."""

_BEHIND = r"\W{0,8}(?:is\W{1,3})?\Z"
"""Between a label and its value. JSON in JSON has up to eight characters there: `\\": \\"` and more backslashes."""

_PHONES = r"(?:tele)?(?:phone|fon|fone)|ph|tel|mob(?:ile?)?|cell|fax|whatsapp|handy|t[eé]l[eé]fono|celular|m[oó]vil"
_NUMBER = "(?:[ _.-]{0,2}(?:number|nummer|num|no|nr))?"
_CALLS = "(?:call|text|ring|phone|reach|contact) (?:me|us|him|her|them)(?: back)?(?: (?:at|on))?"
_OTHERS = (
    r"(?<!\w)(?:тел(?:ефона?)?|моб(?:ильный)?)\b|טלפון|هاتف|جوال|โทร(?:ศัพท์)?|फ़ोन"
    "|(?:电话|電話|手机|手機|携帯|전화|휴대폰|핸드폰)(?:号码|號碼|番号|番號|번호|号|號)?[是为為は은는]?"
)
"""Words of scripts without capitals count wherever they stand, since endings and articles are attached to them."""

PHONE = re.compile(
    rf"(?:{_BEGINS}(?:(?:{_PHONES}){_NUMBER}|{_CALLS}|call)\b|{_OTHERS}){_BEHIND}",
    re.IGNORECASE,
)
"""Over the text before a number: it ends with a word for a telephone."""

_ENDS = "ne on ph el ob le il ll ax pp dy no ar er um nr me us im em ck at is"
PHONE_ENDS = frozenset(_ENDS.split())
"""The last two letters of what `PHONE` finds in ASCII, in lower case."""

PHONE_PARTS = (
    *("ph", "fon", "tel", "tél", "mob", "móv", "mov", "cel", "call", "fax", "app", "hand", "text", "ring", "reach"),
    *(
        "contact",
        "тел",
        "моб",
        "电话",
        "電話",
        "手机",
        "手機",
        "携帯",
        "전화",
        "휴대폰",
        "핸드폰",
        "טלפון",
        "هاتف",
        "جوال",
    ),
    *("โทร", "फ़ोन"),
)
"""Every label of a telephone, in lower case, has one of these in it."""

PHONE_SIGN = (
    "(?:(?i:ph|phone|fon|fone|tel|mob(?:[i?]le?)?|cell|call|fax|app|handy|t[e?]l[e?]fono|celular|m[o?]v[i?]l)"
    rf"(?i:{_NUMBER})|(?i: (?:me|u[s?]|h[i?]m|her|them)(?: bac[k?])?(?: (?:at|on))?)|\?\?)"
    "[^0-9A-Za-z_]{0,8}(?i:[i?][s?][^0-9A-Za-z_]{1,3})?"
)
"""What `PHONE` finds, for signs (see `recognisers.built_in`). Words of other scripts are two "?" or more."""

SSN = re.compile(
    rf"{_BEGINS}(?:ssn|social[ _-]?security(?:[ _-]?(?:number|no\.?|#))?){_BEHIND}",
    re.IGNORECASE,
)
"""Over the text before a number: it ends with a name of US social security numbers."""

SSN_SIGN = "(?i:[s?][s?]n|ecur[i?]ty(?:[ _-]?(?:number|no\\.?|#))?)[^0-9A-Za-z_]{0,8}(?i:[i?][s?][^0-9A-Za-z_]{1,3})?"
"""The same for signs. "?" stands for non-ASCII letters that match ASCII ones when case is ignored."""

_LOGIN = re.compile(r"(?i:cookie)\W*$|\bPIN\b|(?i:pin[ _-]?(?:code|number))")

MOST = 64
"""Longer keys are no labels."""


@lru_cache(maxsize=4096)
def recognisers_of(key: str) -> tuple[str, ...]:
    """Return the recognisers that may find something behind this key of JSON because of its name."""
    if len(key) > MOST:
        return ()
    label = f"{key}: "
    names = (("phone", PHONE), ("us_ssn", SSN), ("credential", _LOGIN))
    return tuple(name for name, pattern in names if pattern.search(label))
