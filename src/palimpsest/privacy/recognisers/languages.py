"""Words for "password" in languages other than English, and for the "is" that follows them. Pure.

Names in Latin letters count as whole words, with or without their accents. Names in other scripts count wherever they
stand: some scripts have no spaces, or attach endings and articles to a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

LATIN = (
    *("kennwort", "contraseña", "contrasinal", "contrasenya", "clave", "senha"),
    *("wachtwoord", "wagwoord", "lösenord", "adgangskode", "passord", "salasana", "parool", "slaptažodis"),
    *("hasło", "heslo", "geslo", "lozinka", "jelszó", "parolă", "şifre", "mật_khẩu", "kata_sandi"),
)
"""German, Spanish, Galician, Catalan, Spanish, Portuguese; Dutch, Afrikaans, Swedish, Danish, Norwegian, Finnish,
Estonian, Lithuanian; Polish, Czech, Slovenian, Croatian, Hungarian, Romanian and Turkish, Turkish, Vietnamese,
Indonesian."""

OTHERS = (
    *("парол", "лозинк", "συνθηματικ", "κωδικός_πρόσβασης"),
    *("密码", "密碼", "口令", "パスワード", "暗証番号", "비밀번호", "패스워드", "암호"),
    *("סיסמ", "كلمة_المرور", "كلمة_مرور", "كلمة_السر", "رمز_عبور", "گذرواژه"),
    *("पासवर्ड", "পাসওয়ার্ড", "รหัสผ่าน"),
)
"""Russian, Ukrainian and Bulgarian, Serbian, Greek; Chinese, Japanese, Korean; Hebrew, Arabic, Persian; Hindi, Bengali,
Thai."""

SAYS = "lautet|jest|är|er|è|é|это"
"""Words for "is", besides `is`, `ist`, `es` and `est`, that stand alone."""

SAYS_BEHIND = "是为為は은는"
"""Words for "is" that are attached to the name."""

_ENDINGS = "(?:e[mnt]|[mn]|ni|mi|si)?"
"""Endings that stand for "the", "my" or "your": `lösenordet`, `şifrem`, `salasanani`."""

_PLAIN = str.maketrans("łŁđĐıØø", "lLdDiOo")


def folded(text: str) -> str:
    """Return the text in ASCII: letters without their accents, and without characters that have no such letter."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKD", text.translate(_PLAIN)).encode("ascii", "ignore").decode()


def _marked(word: str) -> str:
    """Return a pattern for a word in a text with "?" for each non-ASCII character; accents may be such characters."""
    letters = (char if char.isascii() else rf"(?:{folded(char)}\?{{0,2}}|\?)" for char in word)
    return "".join(letters).replace("_", "[ _-]")


SIGN = "|".join(map(_marked, LATIN)) + r"|\?\?"
"""For a text in which "?" stands for each non-ASCII character: the Latin names, and the beginning of all others."""

_NAME = re.compile(rf"(?:{'|'.join(map(_marked, LATIN))}){_ENDINGS}(?![a-z])")
_WORD = re.compile(rf" (?:{'|'.join(folded(word).replace('_', ' ') for word in LATIN)}){_ENDINGS} ")
_OTHER = re.compile(rf"(?:{'|'.join(OTHERS)})[\u0370-\u05ff]{{0,3}}".replace("_", r"\s"), re.IGNORECASE)
_QUICK = tuple(folded(word).partition("_")[0] for word in LATIN)
_ACCENTED = [unicodedata.normalize(form, word) for form in ("NFC", "NFD") for word in LATIN if not word.isascii()]
_QUICK_MARKED = tuple(re.sub("[^a-z_]", "?", word).partition("_")[0] for word in _ACCENTED)
_QUICK_OTHER = tuple({word.partition("_")[0] for word in OTHERS})


def may_name(text: str, lower: str) -> bool:
    """Return whether `password_names` may find one.

    `lower` is the text in lower case, with "?" for non-ASCII characters.
    """
    if any(word in lower for word in _QUICK):
        return True
    if text.isascii():
        return False
    small = text.lower()
    return any(word in lower for word in _QUICK_MARKED) or any(word in small for word in _QUICK_OTHER)


def password_names(text: str, lower: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each name: first those in Latin letters, then the others."""
    yield from (match.span() for match in _NAME.finditer(lower))
    if not text.isascii():
        yield from (match.span() for match in _OTHER.finditer(text))


def is_password_name(key: str, words: str) -> bool:
    """Return whether a key is such a name or has one among its words.

    `words` are the key's words in lower-case ASCII, with a space before and after each.
    """
    return _WORD.search(words) is not None or (not key.isascii() and _OTHER.search(key) is not None)
