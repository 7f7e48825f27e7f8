"""What a password is called in languages beside English, and how they say what it is. Pure.

In Latin letters a name counts as a whole word, with its accents and without. In others it counts wherever it stands:
some are written without spaces, or put endings and articles to a word.
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
"""What is said for "is", beside `is`, `ist`, `es` and `est`: words of their own."""

SAYS_BEHIND = "是为為は은는"
"""The same, right behind the name."""

_ENDINGS = "(?:e[mnt]|[mn]|ni|mi|si)?"
"""What stands for "the", "my" or "your": `lösenordet`, `şifrem`, `salasanani`."""

_PLAIN = str.maketrans("łŁđĐıØø", "lLdDiOo")


def folded(text: str) -> str:
    """The text in ASCII: letters without their accents, and nothing for what has no letter there."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKD", text.translate(_PLAIN)).encode("ascii", "ignore").decode()


def _marked(word: str) -> str:
    """A pattern for a word where "?" stands for what is not ASCII: an accent may be a character of its own."""
    letters = (char if char.isascii() else rf"(?:{folded(char)}\?{{0,2}}|\?)" for char in word)
    return "".join(letters).replace("_", "[ _-]")


SIGN = "|".join(map(_marked, LATIN)) + r"|\?\?"
"""For a text where "?" stands for what is not ASCII: the Latin names, and what all others begin with."""

_NAME = re.compile(rf"(?:{'|'.join(map(_marked, LATIN))}){_ENDINGS}(?![a-z])")
_WORD = re.compile(rf" (?:{'|'.join(folded(word).replace('_', ' ') for word in LATIN)}){_ENDINGS} ")
_OTHER = re.compile(rf"(?:{'|'.join(OTHERS)})[\u0370-\u05ff]{{0,3}}".replace("_", r"\s"), re.IGNORECASE)
_QUICK = tuple(folded(word).partition("_")[0] for word in LATIN)
_ACCENTED = [unicodedata.normalize(form, word) for form in ("NFC", "NFD") for word in LATIN if not word.isascii()]
_QUICK_MARKED = tuple(re.sub("[^a-z_]", "?", word).partition("_")[0] for word in _ACCENTED)
_QUICK_OTHER = tuple({word.partition("_")[0] for word in OTHERS})


def may_name(text: str, lower: str) -> bool:
    """Whether `password_names` may find one; `lower` is the text in small letters, "?" for what is not ASCII."""
    if any(word in lower for word in _QUICK):
        return True
    if text.isascii():
        return False
    small = text.lower()
    return any(word in lower for word in _QUICK_MARKED) or any(word in small for word in _QUICK_OTHER)


def password_names(text: str, lower: str) -> Iterator[tuple[int, int]]:
    """Where names are, from and to: first those in Latin letters, then the others."""
    yield from (match.span() for match in _NAME.finditer(lower))
    if not text.isascii():
        yield from (match.span() for match in _OTHER.finditer(text))


def is_password_name(key: str, words: str) -> bool:
    """Whether a key is a name, or has one among its words, which are in small letters of ASCII between spaces."""
    return _WORD.search(words) is not None or (not key.isascii() and _OTHER.search(key) is not None)
