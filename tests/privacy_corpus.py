"""A labelled corpus for the recognisers: invented values with right and wrong checksums, and look-alikes.

Every sample names the private places in it and their kinds. Checksums are computed here in another way than in the
library, so that an error in one shows. Some samples are known to be too hard, since a measurement in which everything
is found shows no difference.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Sample(NamedTuple):
    """A text and the (start, end, kind) of each private place; if `hard`, rules are not expected to find it."""

    text: str
    spans: tuple[tuple[int, int, str], ...]
    hard: bool = False


FRAMES = (
    "Please use {} for this one.",
    "Noted: {}, and nothing else was changed.",
    'The form says "{}" in the second line.',
    "({})",
    "{}",
    "First line\n{}\nlast line",
    "I have sent it to {}. Then I closed the ticket.",
    "värde: {}, tack",
)
_WORDS = "barley oats rye spelt emmer flax lentil vetch clover chard leek kale turnip radish sorrel yarrow"
WORDS = _WORDS.split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def corpus(seed: int = 0, each: int = 40) -> list[Sample]:
    """Return the samples: about `each` private values of every kind, and as many look-alikes."""
    rng = random.Random(seed)
    samples: list[Sample] = []
    for kind, make in POSITIVE.items():
        samples.extend(_framed(rng, make(rng), kind) for _ in range(each))
    for hard in HARD.values():
        values = (hard(rng) for _ in range(max(each // 8, 1)))
        samples.extend(_framed(rng, value, kind)._replace(hard=True) for kind, value in values)
    for look_alike in NEGATIVE:
        samples.extend(_framed(rng, look_alike(rng), None) for _ in range(max(each // 2, 1)))
    samples.extend(Sample(text, ()) for text in PROSE)
    return samples


def _framed(rng: random.Random, value: str | tuple[str, str, str], kind: str | None) -> Sample:
    """Return a sample with the value inside a sentence; of (before, private, after) only the middle is private."""
    before, private, after = value if isinstance(value, tuple) else ("", value, "")
    left, right = rng.choice(FRAMES).split("{}")
    start = len(left) + len(before)
    text = left + before + private + after + right
    return Sample(text, ((start, start + len(private), kind),) if kind is not None else ())


# --- checksums


def luhn_digit(digits: str) -> str:
    """Return the Luhn check digit, found by trying all ten."""
    for last in "0123456789":
        total = 0
        for i, char in enumerate(reversed(digits + last)):
            doubled = int(char) * (1 + i % 2)
            total += doubled // 10 + doubled % 10
        if total % 10 == 0:
            return last
    raise AssertionError


def iban(rng: random.Random, country: str, account: str) -> str:
    """Return the IBAN of an account; its check digits are found by trying, with long division."""
    for check in range(2, 99):
        rest = 0
        for char in account + country + f"{check:02}":
            value = int(char, 36)
            rest = (rest * (100 if value > 9 else 10) + value) % 97
        if rest == 1:
            return f"{country}{check:02}{account}"
    raise AssertionError


def tax_digit(digits: str) -> str:
    """Return the check digit of a German tax id."""
    product = 10
    for char in digits:
        total = (int(char) + product) % 10
        product = (2 * (total or 10)) % 11
    return str((11 - product) % 10)


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choices("0123456789", k=count))


def _grouped(text: str, *sizes: int, by: str = " ") -> str:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    return by.join(filter(None, [*pieces, text[at:]]))


# --- what is to be found


def card(rng: random.Random) -> str:
    prefix, size = rng.choice((("4", 16), ("4", 13), ("51", 16), ("2345", 16), ("37", 15), ("6011", 16), ("36", 14)))
    bare = prefix + _digits(rng, size - len(prefix) - 1)
    bare += luhn_digit(bare)
    if size == 16:
        spread = _grouped(bare, 4, 4, 4, 4, by=rng.choice(("  ", ".", "\n", "\u2009", "\u202f", "_", "/", " - ", "\t")))
        return rng.choice((bare, _grouped(bare, 4, 4, 4, 4), _grouped(bare, 4, 4, 4, 4, by="-"), spread))
    return rng.choice((bare, _grouped(bare, 4, 6, 5))) if size in (14, 15) else bare


def account(rng: random.Random) -> str:
    country, size, bank = rng.choice(
        (("DE", 18, ""), ("GB", 14, "NWBK"), ("FR", 23, ""), ("NL", 10, "ABNA"), ("NO", 11, ""))
    )
    found = iban(rng, country, bank + _digits(rng, size))
    spread = _grouped(found, *[4] * 8, by=rng.choice(("  ", "\u202f", "-", ".", "\n")))
    return rng.choice((found, _grouped(found, *[4] * 8), found.lower(), spread))


def email(rng: random.Random) -> str:
    name = rng.choice((".", "_", "-", "+", "")).join(rng.sample(WORDS, 2))
    host = rng.choice(
        ("example.com", "mail.example.org", "vault-7.example.co.uk", "büro.example", "xn--bro-hoa.example")
    )
    return rng.choice((f"{name}@{host}", f"{name}{rng.randrange(99)}@{host}", f"{name.title()}@{host.upper()}"))


def phone(rng: random.Random) -> str | tuple[str, str, str]:
    area, exchange = f"{rng.randrange(201, 989)}", f"{rng.randrange(201, 999)}"
    line = _digits(rng, 4)
    forms = (
        f"+1 {area} {exchange} {line}",
        f"({area}) {exchange}-{line}",
        f"{area}-{exchange}-{line}",
        f"{area}.{exchange}.{line}",
        f"+49 30 {_digits(rng, 6)}",
        f"+44 (0)20 7{_digits(rng, 3)} {_digits(rng, 4)}",
        f"+3361{_digits(rng, 7)}",
        f"0049 171 {_digits(rng, 7)}",
        f"030 9{_digits(rng, 7)}",
        f"0171/{rng.randrange(1, 9)}{_digits(rng, 6)}",
        "06 " + " ".join(_digits(rng, 2) for _ in range(4)),
        ("phone: ", f"{rng.randrange(2, 9)}{_digits(rng, 6)}", ""),
        ("Tel. ", f"{area}{exchange}{line}", ""),
    )
    return rng.choice(forms)


def ip(rng: random.Random) -> str:
    four = ".".join(str(rng.randrange(1, 255)) for _ in range(4))
    groups = [f"{rng.randrange(1, 65536):x}" for _ in range(8)]
    short = f"2001:db8:{rng.randrange(1, 65536):x}::{rng.randrange(1, 255)}"
    found = rng.choice((four, four, ":".join(groups), short))
    return f"10{four[four.index('.') :]}" if four.startswith("127.") else found


def ssn(rng: random.Random) -> str | tuple[str, str, str]:
    area = rng.choice([n for n in (*range(1, 666), *range(667, 900)) if n not in (78, 219, 457)])
    parts = f"{area:03}", f"{rng.randrange(1, 100):02}", f"{rng.randrange(1, 10000):04}"
    return rng.choice(("-".join(parts), " ".join(parts), ("SSN: ", "".join(parts), "")))


def nino(rng: random.Random) -> str:
    found = rng.choice(("AB", "CE", "JG", "PX", "SR", "WL")) + _digits(rng, 6) + rng.choice("ABCD")
    return rng.choice((found, _grouped(found, 2, 2, 2, 2, 1)))


def tax_id(rng: random.Random) -> str:
    digits = rng.sample("0123456789", 9)
    digits.insert(rng.randrange(9), rng.choice(digits))
    if digits[0] == "0":
        place = next(i for i, digit in enumerate(digits) if digit != "0")
        digits[0], digits[place] = digits[place], digits[0]
    found = "".join(digits)
    found += tax_digit(found)
    return rng.choice((found, _grouped(found, 2, 3, 3, 3)))


def nir(rng: random.Random) -> str:
    born = f"{rng.randrange(1, 3)}{rng.randrange(100):02}{rng.randrange(1, 13):02}{rng.randrange(1, 96):02}"
    found = born + _digits(rng, 6)
    found += f"{97 - int(found) % 97:02}"
    return rng.choice((found, _grouped(found, 1, 2, 2, 2, 3, 3, 2)))


def _token(rng: random.Random, count: int, letters: str = LETTERS + LETTERS.upper() + "0123456789") -> str:
    """Return random characters of a key, at least one of them a digit."""
    chars = rng.choices(letters, k=count)
    chars[rng.randrange(count)] = rng.choice("0123456789")
    return "".join(chars)


def api_key(rng: random.Random) -> str:
    capitals = LETTERS.upper() + "0123456789"
    secret = base64.urlsafe_b64encode(json.dumps({"sub": _token(rng, 8)}).encode()).decode().rstrip("=")
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    return rng.choice(
        (
            "AKIA" + _token(rng, 16, capitals),
            "ghp_" + _token(rng, 36),
            "github_pat_" + _token(rng, 22) + "_" + _token(rng, 59),
            "sk-" + _token(rng, 48),
            "sk-proj-" + _token(rng, 40),
            "xoxb-" + _digits(rng, 12) + "-" + _token(rng, 24),
            "AIza" + _token(rng, 35),
            "sk_live_" + _token(rng, 24),
            "SG." + _token(rng, 22) + "." + _token(rng, 43),
            "hf_" + _token(rng, 34),
            "npm_" + _token(rng, 36),
            "glpat-" + _token(rng, 20),
            f"{header}.{secret}.{_token(rng, 43)}",
            "https://hooks.slack.com/services/T"
            + _token(rng, 8, capitals)
            + "/B"
            + _token(rng, 8, capitals)
            + "/"
            + _token(rng, 24),
        )
    ).removeprefix("https://")


def private_key(rng: random.Random) -> str:
    kind = rng.choice(("", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "))
    lines = "\n".join(_token(rng, 64, LETTERS + LETTERS.upper() + "0123456789+/") for _ in range(rng.randrange(2, 9)))
    whole = f"-----BEGIN {kind}PRIVATE KEY-----\n{lines}==\n-----END {kind}PRIVATE KEY-----"
    return rng.choice((whole, whole.replace("\n", "\\n")))


def credential(rng: random.Random) -> tuple[str, str, str]:
    password = rng.choice(WORDS) + rng.choice("!#_-?+") + _digits(rng, 3)
    token = _token(rng, rng.randrange(12, 40))
    return rng.choice(
        (
            ("password = ", password, ""),
            ("password: ", password, ""),
            ("DB_PASSWORD=", password, ""),
            ('"password": "', password, '"'),
            ("{'apiKey': '", token, "'}"),
            ("api_key=", token, "&page=2"),
            ("X-Api-Key: ", token, ""),
            ("Authorization: Bearer ", token, ""),
            ("authorization: Basic ", base64.b64encode(token.encode()).decode().rstrip("="), ""),
            ("export CLIENT_SECRET='", token, "'"),
            ("access_token=", token, ""),
            ("--password ", password, " --verbose"),
            ("my password is ", rng.choice(WORDS) + _digits(rng, 3), ""),
            ("postgres://vault:", _token(rng, 12), "@db.internal/seeds"),
            ('{\\"secret\\": \\"', token, '\\"}'),
            ("pwd=", rng.choice(WORDS), ";"),
            ("SMTP_PASS=", password, ""),
            (
                rng.choice(
                    ("Passwort: ", "mein Kennwort ist ", "contraseña: ", "clave = ", "Mot de passe : ", "hasło: ")
                ),
                password,
                "",
            ),
            (
                rng.choice(("minha senha é ", "мой пароль: ", "密码：", "パスワードは", "비밀번호: ", "كلمة المرور: ")),
                password,
                "",
            ),
            ("<password>", password, "</password>"),
            ("curl -s -u admin:", password, " https://vault.example/x"),
            ("mysql -u root -p", password, " seeds"),
            ("https://vault.example/a?sv=2020&sig=", _token(rng, 20), "&sr=b"),
            ("My PIN is ", _digits(rng, 4), ""),
        )
    )


POSITIVE: dict[str, Callable[[random.Random], str | tuple[str, str, str]]] = {
    "card": card,
    "iban": account,
    "email": email,
    "phone": phone,
    "ip": ip,
    "us_ssn": ssn,
    "uk_nino": nino,
    "de_tax_id": tax_id,
    "fr_nir": nir,
    "api_key": api_key,
    "private_key": private_key,
    "credential": credential,
}

HARD: dict[str, Callable[[random.Random], tuple[str, str | tuple[str, str, str]]]] = {
    "a telephone number without signs": lambda rng: ("phone", f"{rng.randrange(2, 9)}{_digits(rng, 9)}"),
    "a local number": lambda rng: ("phone", f"{rng.randrange(201, 999)}-{_digits(rng, 4)}"),
    "an SSN without dashes": lambda rng: ("us_ssn", "".join(filter(str.isdecimal, "".join(ssn(rng))))),
    "an address that was spelled out": lambda rng: ("email", email(rng).replace("@", " at ").replace(".", " dot ")),
    "a Corsican number": lambda rng: ("fr_nir", "1 84 05 2A 006 084 36"),
    "an account in odd groups": lambda rng: ("iban", _grouped(account(rng).replace(" ", ""), 5, 5, 5, 5, by=" / ")),
    "a card in odd groups": lambda rng: ("card", _grouped("411111111111111" + luhn_digit("411111111111111"), 5, 5)),
    "a token without a name": lambda rng: ("api_key", _token(rng, 40)),
    "a password that is a word": lambda rng: ("credential", ("the password is ", rng.choice(WORDS), "")),
    "a password in another language": lambda rng: ("credential", ("lykilorð: ", _token(rng, 9), "")),
}

# --- what only looks alike

NEGATIVE: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: _bad_check(card(rng)),  # the checksum is wrong
    lambda rng: _bad_check(account(rng)),
    lambda rng: "9" + _digits(rng, 15),  # no network begins like that
    lambda rng: f"0.{_digits(rng, 16)}",
    lambda rng: f"{rng.random()}, {rng.random() * 90}",
    lambda rng: f"{rng.randrange(10**12, 2 * 10**12)}",  # milliseconds since 1970
    lambda rng: (
        f"20{rng.randrange(10, 30)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02} {rng.randrange(24):02}:30:15"
    ),
    lambda rng: f"{rng.randrange(1, 29):02}.{rng.randrange(1, 13):02}.2026",
    lambda rng: f"{rng.randrange(1, 29):02}-{rng.randrange(1, 13):02}-2026 0{rng.randrange(1, 9)}:15",
    lambda rng: f"{_hex(rng, 8)}-{_hex(rng, 4)}-4{_hex(rng, 3)}-a{_hex(rng, 3)}-{_hex(rng, 12)}",
    lambda rng: _hex(rng, 40),
    lambda rng: f"666-{_digits(rng, 2)}-{_digits(rng, 4)}",
    lambda rng: f"9{_digits(rng, 2)}-{_digits(rng, 2)}-{_digits(rng, 4)}",
    lambda rng: f"v{rng.randrange(9)}.{rng.randrange(20)}.{rng.randrange(20)}",
    lambda rng: f"{rng.randrange(256, 999)}.1.2.3",
    lambda rng: rng.choice(("127.0.0.1", "0.0.0.0", "::1", "std::vector", "abc::def", "12:30:45", "aa:bb:cc:dd:ee:ff")),  # noqa: S104
    lambda rng: f"@{rng.choice(WORDS)}",
    lambda rng: f"{rng.choice(WORDS)}@2x.png",
    lambda rng: f"{rng.choice(WORDS)}@18.{rng.randrange(9)}.0",
    lambda rng: f"git@{rng.choice(WORDS)}.example.com:seeds/vault.git",
    lambda rng: "user@localhost",
    lambda rng: f"BG{_digits(rng, 6)}A",
    lambda rng: f"{rng.choice(WORDS).upper()} {_digits(rng, 6)}",
    lambda rng: f"tokens: {rng.randrange(10**4)}, max_tokens={rng.randrange(10**4)}",
    lambda rng: rng.choice(
        (
            "password: str",
            "token = get_token(",
            "password = config.password",
            "secret: ${VAULT_SECRET}",
            "api_key=os.environ[",
            "password: required",
            "the secret is out",
            "a token: it expires soon",
            'password: "********"',
        )
    ),
    lambda rng: rng.choice(
        (
            "first_pass=3 second_pass = slow",
            "bypass: everything2",
            "Passwort: bitte",
            "пароль: не менее 8 символов",
            "密码：至少8位",
            "パスワードは8文字以上です",
            "la clave del asunto es sencilla",
            "docker run -u 1000:1000 image",
            "curl -u, wget and the rest",
            "the cookie: a small file",
            "<token>",
            "spin = 1200, pin: 13, pin code: 12",
            f"design={_digits(rng, 12)}",
            "a mysql -p prompt",
        )
    ),
    lambda rng: "\n".join(f"{rng.randrange(4000, 5900)}" for _ in range(9)),  # a column of a table
    lambda rng: "  ".join(_digits(rng, 4) for _ in range(7)),
    lambda rng: f"{_hex(rng, 2)}89{_hex(rng, 17)}",
    lambda rng: f"sk-{rng.choice(WORDS)}-{rng.choice(WORDS)}-package-for-seeds",
    lambda rng: f"order {_digits(rng, 4)} of {_digits(rng, 5)}, lot {_digits(rng, 6)}",
    lambda rng: "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQ\n-----END PUBLIC KEY-----",
    lambda rng: f"https://example.com/{rng.choice(WORDS)}?page={_digits(rng, 8)}&sort=asc",
    lambda rng: json.dumps({"row": rng.randrange(10**6), "weight": rng.random(), "at": "2026-11-21T10:00:00Z"}),
)

PROSE = (
    "The humidity in the north vault has stayed above 61 percent since the fan was replaced on 3 May 2026.",
    "Section 4.2.1 says that 10 to 12 trays (about 250 grams) are enough; see pages 112-118.",
    "Results: 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181, 6765, 10946.",
    "ISBN 978-3-16-148410-0 is the printed register. The password policy asks for twelve characters.",
    "| 2024 | 2025 | 2026 |\n| 1200 | 1350 | 1400 |\n| 8000 | 8100 | 8250 |",
    "Call me tomorrow at 10:30, not at 15:45; the meeting on 2026-11-21 was moved to room 204.",
)


def _hex(rng: random.Random, count: int) -> str:
    return "".join(rng.choices("0123456789abcdef", k=count))


def _bad_check(value: str) -> str:
    """Return the value with its last digit raised by one, so that its checksum is wrong."""
    return value[:-1] + str((int(value[-1]) + 1) % 10)


class Score(NamedTuple):
    """The results of a recogniser: private values found and missed, hard ones found and in all, and false alarms."""

    found: int
    missed: int
    hard_found: int
    hard: int
    false_alarms: int


def scores(samples: list[Sample], find: Callable[[str, str], list[tuple[int, int]]]) -> Iterator[tuple[str, Score]]:
    """Yield the score of each kind. `find(kind, text)` returns the places that the kind's recogniser finds.

    A value counts as found if one place covers all of it. A place that touches no private value of any kind is a false
    alarm.
    """
    for kind in POSITIVE:
        counts = {"found": 0, "missed": 0, "hard_found": 0, "hard": 0, "false_alarms": 0}
        for sample in samples:
            places = find(kind, sample.text)
            for start, end, of in sample.spans:
                if of == kind:
                    hit = any(first <= start and end <= last for first, last in places)
                    counts["hard"] += sample.hard
                    counts["hard_found"] += sample.hard and hit
                    counts["found"] += hit and not sample.hard
                    counts["missed"] += not hit and not sample.hard
            touched = [(start, end) for start, end, _ in sample.spans]
            counts["false_alarms"] += sum(
                not any(first < end and start < last for start, end in touched) for first, last in places
            )
        yield kind, Score(**counts)


def _pieces() -> list[str]:
    rng = random.Random(11)
    made = [make(rng) for make in POSITIVE.values() for _ in range(3)] + [make(rng) for make in NEGATIVE]
    return ["".join(value) for value in made]


CORPUS_PIECES = _pieces()
"""Private values and look-alikes without sentences around them, as parts of other texts."""
