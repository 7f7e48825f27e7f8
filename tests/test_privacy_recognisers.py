"""The built-in recognisers: what each finds, what it leaves alone, and that no text slows them down."""

from __future__ import annotations

import random
import re
import unicodedata
from functools import cache
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest.privacy.recognisers import cards, languages
from palimpsest.privacy.recognisers.built_in import BUILT_IN, PRESETS
from palimpsest.privacy.recognisers.scanning import Scan
from palimpsest.privacy.recognisers.secret_names import secret_word
from palimpsest.privacy.redaction import Redactor
from privacy_corpus import NEGATIVE, POSITIVE, PROSE, Sample, Score, corpus, scores


def find(kind: str, text: str) -> list[tuple[int, int]]:
    scan = Scan(text)
    if not BUILT_IN[kind].may_find(scan):
        return []
    return [(span.start, span.end) for span in BUILT_IN[kind].find(scan)]


def found(kind: str, text: str) -> list[str]:
    return [text[start:end] for start, end in sorted(find(kind, text))]


@cache
def samples() -> list[Sample]:
    return corpus(seed=7, each=120)


@cache
def scored() -> dict[str, Score]:
    return dict(scores(samples(), find))


@pytest.mark.parametrize("kind", BUILT_IN)
def test_each_recogniser_meets_its_recall_on_the_corpus(kind: str) -> None:
    """A recogniser finds at least 99 % of well-formed values, with at most 2 % false alarms."""
    score = scored()[kind]

    assert score.found >= 0.99 * (score.found + score.missed) > 100
    assert score.false_alarms <= 0.02 * score.found


def test_the_corpus_has_values_that_rules_cannot_find() -> None:
    """The corpus has samples that rules cannot find, so that the measure is honest."""
    hard = {kind: (score.hard_found, score.hard) for kind, score in scored().items() if score.hard}

    assert {"phone", "us_ssn", "email", "credential", "card", "iban", "fr_nir", "api_key"} == hard.keys()
    assert all(hit < total / 2 for hit, total in hard.values()), hard


@pytest.mark.parametrize("text", PROSE)
def test_plain_prose_and_tables_are_left_alone(text: str) -> None:
    """Numbers, dates and times of ordinary prose and tables are left alone."""
    assert Redactor({"recognisers": "default"}).text(text) == text


EXAMPLES = {
    "card": [
        ("4111 1111 1111 1111, 03/27", ["4111 1111 1111 1111"]),
        ("lot 12 4111-1111-1111-1111 7", ["4111-1111-1111-1111"]),
        ("378282246310005 and 3782 822463 10005", ["378282246310005", "3782 822463 10005"]),
        ("4111  1111  1111  1111 4111.1111.1111.1111", ["4111  1111  1111  1111", "4111.1111.1111.1111"]),
        (
            "a\n4111\n1111\n1111\n1111\nb 4111\u20091111\u20091111\u20091111",
            ["4111\n1111\n1111\n1111", "4111\u20091111\u20091111\u20091111"],
        ),
        (
            "4111_1111_1111_1111, 4111/1111/1111/1111, 41111111 11111111 12/27",
            ["4111_1111_1111_1111", "4111/1111/1111/1111", "41111111 11111111"],
        ),
        ("2204990000000002, 6074 3200 0000 0000", ["2204990000000002", "6074 3200 0000 0000"]),
        ("5067260000000009 5061020000000000003", ["5067260000000009", "5061020000000000003"]),
        ("500\n4111\n1111\n1111\n1111", []),
        ("4000\n4111\n1111\n1111\n1111\n4200", []),
        ("4111.1111 1111_1111", []),
        ("4111 1111 1111 1112", []),
        ("0.4111111111111111", []),
        ("id4111111111111111", []),
        ("1234567812345670", []),
    ],
    "iban": [
        ("DE89 3704 0044 0532 0130 00.", ["DE89 3704 0044 0532 0130 00"]),
        ("to GB29NWBK60161331926819 please", ["GB29NWBK60161331926819"]),
        (
            "de89370400440532013000 or de89 3704 0044 0532 0130 00",
            ["de89370400440532013000", "de89 3704 0044 0532 0130 00"],
        ),
        (
            "DE89\u202f3704\u202f0044\u202f0532\u202f0130\u202f00",
            ["DE89\u202f3704\u202f0044\u202f0532\u202f0130\u202f00"],
        ),
        ("de89 370400 440532 013000", []),
        ("DE89 3704 0044 0532 0130 01", []),
        ("DE89 3704 0044 0532 0130", []),
        ("ZZ89370400440532013000", []),
    ],
    "email": [
        ("<bob@example.com>, Ann.B+x@sub.example.org.", ["bob@example.com", "Ann.B+x@sub.example.org"]),
        ("mailto:bob@example.com?subject=x", ["bob@example.com"]),
        (
            "to=bob%40example.com or bob@example.com%40bob@example.com",
            ["to=bob%40example.com", *["bob@example.com"] * 2],
        ),
        ("jürgen@büro.example", ["jürgen@büro.example"]),
        ("jose\u0301@exa\u0308mple.de", ["jose\u0301@exa\u0308mple.de"]),
        ("लिखो राम@डाटामेल.भारत को, ส้ม@ตัวอย่าง.ไทย", ["राम@डाटामेल.भारत", "ส้ม@ตัวอย่าง.ไทย"]),
        (
            "jane@example.xn--p1ai, a@xn--e1afmkfd.xn--80akhbyknj4f.",
            ["jane@example.xn--p1ai", "a@xn--e1afmkfd.xn--80akhbyknj4f"],
        ),
        ("ion@mail.md or ion@example.org.md", ["ion@mail.md", "ion@example.org"]),
        ('to "jane doe"@example.com and "x" a@example.com', ['"jane doe"@example.com', "a@example.com"]),
        ("git@github.example:a/b.git @ann logo@2x.png pkg@1.2.3 a@b user@localhost", []),
    ],
    "phone": [
        ("(555) 234-5678 or 1-555-234-5678", ["(555) 234-5678", "1-555-234-5678"]),
        ("+49 (0)30 901820-11!", ["+49 (0)30 901820-11"]),
        ("phone: 555-1234", ["555-1234"]),
        ("Mobil 01711234567", ["01711234567"]),
        (
            "phone number: 2025550143, Phone no. 5550144, my phone number is 2025550145",
            ["2025550143", "5550144", "2025550145"],
        ),
        ('{"phoneNumber": "2025550143", "home_phone": 5550144}', ["2025550143", "5550144"]),
        ('{\\"workPhone\\": \\"2025550143\\",\\"fax\\":\\"5550144\\"}', ["2025550143", "5550144"]),
        ("Telefonnummer: 1234567, Tel.-Nr. 1234568, Handynummer 1234569", ["1234567", "1234568", "1234569"]),
        ("teléfono: 3331234567, celular: 5512345678, móvil 612345678", ["3331234567", "5512345678", "612345678"]),
        ("Call me at 2025550143, text us back on 5550144. Mob: 98765 43210", ["2025550143", "5550144", "98765 43210"]),
        ("Телефон: 89123456789, тел. 8 912 345 67 80", ["89123456789", "8 912 345 67 80"]),
        (
            "电话：13800138000，手机号码是13800138001。電話番号は0312345678",
            ["13800138000", "13800138001", "0312345678"],
        ),
        ("전화번호: 0212345678, הטלפון: 031234567, هاتف 0501234567", ["0212345678", "031234567", "0501234567"]),
        ("он хотел 1234567, call at 1700000000, tell them 1234567", []),
        ("last call: 2026-11-30 12:00, next call 01.12.2026, Phone: 11/30/2026, cell: 2026/1/5", []),
        ("a call number 1234567, headphone 1234567, phones: 1234567, numbers: 1234567", []),
        ("at 10:30 555-234-5678", ["555-234-5678"]),
        ("01-02-2026, 2026-11-21 10:00, 52.520008 13.404954, lot 1234567", []),
    ],
    "ip": [
        ("from 203.0.113.9:8080 to 2001:db8::7.", ["203.0.113.9", "2001:db8::7"]),
        ("2001:db8::7: timed out, 2001:db8:0:0:1:2:3:4: x", ["2001:db8::7", "2001:db8:0:0:1:2:3:4"]),
        ("from ::ffff:203.0.113.9", ["::ffff:203.0.113.9", "203.0.113.9"]),
        ("to 64:ff9b::7, fe80::1, fd00::7", ["64:ff9b::7", "fe80::1", "fd00::7"]),
        ("rows[1::2], x[10::3, a::2], std::map<int, e::b6>, a::b1()", []),
        ("v1.2.3 1.2.3 127.0.0.1 256.1.1.1 1.2.3.4.5 std::vector abc::def 12:30:45 ::1", []),
    ],
    "us_ssn": [
        ("My SSN is 123-45-6789", ["123-45-6789"]),
        ("SSN: 123456789, social security number is 123456780", ["123456789", "123456780"]),
        ('{"social_security_number": "123456789", "userSsn": 123456780}', ["123456789", "123456780"]),
        ('{\\"ssn\\": \\"123456789\\"}', ["123456789"]),
        ("000-12-3456 666-12-3456 900-12-3456 123-00-4567 123-45-0000 078-05-1120 123456789", []),
        ("1-123-45-6789 123-45-6789-0", []),
    ],
    "uk_nino": [
        ("AB 12 34 56 C and CE123456D", ["AB 12 34 56 C", "CE123456D"]),
        ("BG123456A AB123456E XAB123456C", []),
    ],
    "de_tax_id": [
        ("86 095 742 719, 47036892816", ["86 095 742 719", "47036892816"]),
        ("86 095 742 718, 12345678903, 06095742719", []),
    ],
    "fr_nir": [("1 84 12 76 451 089 46", ["1 84 12 76 451 089 46"]), ("1 84 12 76 451 089 47, 184137645108946", [])],
    "api_key": [
        ("AKIAIOSFODNN7EXAMPLE.", ["AKIAIOSFODNN7EXAMPLE"]),
        ("key=sk-proj-abcdefghijklmnop1234, ", ["sk-proj-abcdefghijklmnop1234"]),
        ("hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", ["hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"]),
        ("bot 123456789:AAEabcdefghijklmnopqrstuvwxyz0123456", ["AAEabcdefghijklmnopqrstuvwxyz0123456"]),
        (
            "glrt-s18MC0ynhIaDtUPevwmF glpat-HIox92ssbDx4wZ1tVp7ZHaaiOHj.01.Ibk8danXY, hvs.SHhVO1hO104a8s9SeBrEDrsI.",
            [
                "glrt-s18MC0ynhIaDtUPevwmF",
                "glpat-HIox92ssbDx4wZ1tVp7ZHaaiOHj.01.Ibk8danXY",
                "hvs.SHhVO1hO104a8s9SeBrEDrsI",
            ],
        ),
        (
            f"eyJhbGciOiJkaXIifQ..{'a1B2' * 4}.{'c3D4' * 9}.{'e5F6' * 5} "
            f"ghs_12_eyJ{'a1' * 20}.eyJ{'b2' * 20}.{'c3' * 20}",
            [
                f"eyJhbGciOiJkaXIifQ..{'a1B2' * 4}.{'c3D4' * 9}.{'e5F6' * 5}",
                f"ghs_12_eyJ{'a1' * 20}.eyJ{'b2' * 20}.{'c3' * 20}",
            ],
        ),
        *(
            (f"a {key}, b", [key])
            for key in (
                *(f"xoxd-{'aB3%2F' * 10}", f"xoxc-123456789012-123456789012-{'0a' * 32}"),
                *(f"GOCSPX-{'aB3-' * 7}", f"AQ.Ab8RN6{'aB3-' * 11}", f"dckr_pat_{'aB3' * 9}"),
                *(f"dapi{'0a' * 16}", f"dapi{'0a' * 16}-2", f"nvapi-{'aB3-' * 16}x", f"lsv2_pt_{'0a' * 16}_{'0a' * 5}"),
                *(f"pcsk_{'aB3_' * 17}", f"ntn_{'aB3' * 15}", f"AGE-SECRET-KEY-1{'QZ3' * 19}Q"),
                *(
                    f"PMAK-{'0a' * 12}-{'0a' * 17}",
                    f"sb_secret_{'aB3_' * 7}x",
                    f"sbp_{'0a' * 20}",
                    f"dor_v1_{'0a' * 32}",
                ),
                *(f"sk_{'0a' * 24}", f"figd_{'aB3-' * 10}", f"pscale_tkn_{'aB3' * 14}", f"glc_eyJ{'aB3' * 20}"),
                *(f"xkeysib-{'0a' * 32}-{'aB3d' * 4}", f"sntryu_{'0a' * 32}", f"sntrys_eyJ{'aB3_' * 12}"),
                *(
                    f"rubygems_{'0a' * 24}",
                    f"nfp_{'aB3' * 13}",
                    f"tskey-auth-{'aB3-' * 8}x",
                    f"pat{'aB3dE7x' * 2}.{'0a' * 32}",
                ),
                *(f"phx_{'aB3' * 15}", f"e2b_{'0a' * 20}", f"csk-{'ab3' * 16}"),
                *(
                    f"jina_{'aB3_' * 15}",
                    f"dp.pt.{'aB3' * 14}",
                    f"NRAK-{'AB3' * 9}",
                    f"ATATT3xFfGF0{'aB3-' * 40}",
                    f"CCIPAT_{'aB3_' * 15}",
                ),
            )
        ),
        ("glrt-short1 hvs.method_call_of_something dapi_of_something_else sk_learn_contrib_packages_are_here_now", []),
        (
            "cache-key-0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a, SK0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a, pattern1234567890123",
            [],
        ),
        ("sk-learn-contrib-packages-everywhere pk_live_abcdefghij12345 ghp_short1", []),
    ],
    "private_key": [
        ("a -----BEGIN RSA PRIVATE KEY-----\nMIIE==\n-----END RSA PRIVATE KEY----- b", None),
        ("a -----BEGIN PRIVATE KEY-----\\nMIIE\\n b-----", None),
        ("-----BEGIN PUBLIC KEY-----\nMIIE\n-----END PUBLIC KEY-----", []),
    ],
    "credential": [
        ("password = hunter2xyz", ["hunter2xyz"]),
        ('{"dbPassword": "a b c", "x": 1}', ["a b c"]),
        ("Authorization: Bearer abc.def-123 and more", ["abc.def-123"]),
        ("Authorization: Basic dXNlcjpwYXNz\nauthorization: Bearer xyz1", ["dXNlcjpwYXNz", "xyz1"]),
        ("Authorization: Basic authentication is used, Authorization: Bearer Token or $TOKEN", []),
        ("curl -H 'bearer abcdefgh12345678'", ["abcdefgh12345678"]),
        ("https://ann:s3cret@example.com/x", ["s3cret"]),
        ("postgres://user:p@ssw0rd@host/a@b 'redis://:@b@c@host'", ["p@ssw0rd", "@b@c"]),
        ("mysql --password hunter2 -u ann", ["hunter2"]),
        ("my password is hunter2.", ["hunter2"]),
        ('token = "unclosed and long\nnext line', ["unclosed and long"]),
        ('say \\"apiKey\\": \\"q1w2\\" there', ["q1w2"]),
        ("curl -s -u admin:hunter2 https://x --proxy-user=ann:hunter3", ["hunter2", "hunter3"]),
        ("docker run -u 1000:1000 x; curl -u 1:2", []),
        ("mysql -u root -phunter2 db; DB_PASS=hunter3; first_pass=3", ["hunter2", "hunter3"]),
        ("Cookie: sid=abc123; theme=dark\nnext", ["sid=abc123; theme=dark"]),
        ("<password>hunter2</password> <token>text</token> <db-password a='b'> x y </db-password>", ["hunter2", "x y"]),
        ("Passwort: hunter2, mein Kennwort ist hunter3", ["hunter2", "hunter3"]),
        ("contraseña: hunter2, la clave es hunter3, CONTRASEÑA=x1y2", ["hunter2", "hunter3", "x1y2"]),
        ("pw: hunter2, PW=hunter3, the passcode is 48a21, upward: hunter4", ["hunter2", "hunter3", "48a21"]),
        ("https://x.test/?sv=2020&sig=abc%2Fdef%3D", ["abc%2Fdef%3D"]),
        ("the PIN is 4711, pin code: 12345, PIN-код: 4712, PIN-Nummer ist 4713", ["4711", "12345", "4712", "4713"]),
        (
            '{"PIN": "4711", "pin_code": "4712"} {\\"PIN\\": \\"4713\\"} PINnummer: 4714',
            ["4711", "4712", "4713", "4714"],
        ),
        ('{\\"Cookie\\": \\"sid=abc123\\", \\"x\\": 1}', ["sid=abc123"]),
        ("PIN: 13, pin 4711, PIN 2026-11-21, Passwort: bitte, clave: nada", []),
        ("user_pass = '%s:%s'", []),
        ("token_count: 12345, token_limit=128000, {'totalTokenCount': 1532}, eos_token: '</s>'", []),
        ('{"nextPageToken": "CAUQAA12"} &page_token=CAUQAA12& NextToken: abc12345', []),
        ('self.password = password; f(user_password=password, pwd=pwd, token = "{% csrf_token %}")', []),
        ("password=passwords1, user_password=word, token: token1", ["passwords1", "word", "token1"]),
        ("tokens: 4000, max_tokens=5000, secretary: ann, tokenizer = o200k_base", []),
        ("password: str, token = get_token(x), password = config.password, api_key=${KEY}, secret: null", []),
        ("password: please enter it, the secret is out, the password is required", []),
        (
            "PGPASSWORD=abc dbpassword=def ADMINPASSWORD=ghi ANSIBLE_BECOME_PASS=jkl dbpass=mno",
            ["abc", "def", "ghi", "jkl", "mno"],
        ),
        ("secretkey=q1w2 clientsecret=q1w3 authtoken=q1w4 access_key=q1w5", ["q1w2", "q1w3", "q1w4", "q1w5"]),
        (
            "SharedAccessKeyName=RootManageSharedKeys;SharedAccessKey=a1b2c3=;AccountKey=d4e5f6==",
            ["a1b2c3=", "d4e5f6=="],
        ),
        ('{"user":"a","pass":"hunter2x"}', ["hunter2x"]),
        ('auth: { user: "me", pass: "hunter2x" }', ["hunter2x"]),
        ('mountain pass: "Stelvio", bypass="a1b2", compass: "north1", pass: 12', []),
        ("<a accesskey='s'> ann ALL=(ALL) NOPASSWD: /usr/bin/systemctl1", []),
        (
            '{"passwd":["hunter2x", "b"],"password":{"v":"hu\\"3", "n": {"x": 123456}},"a":["c"]}',
            ["hunter2x", "b", 'hu\\"3', "123456"],
        ),
        ('{\\"password\\": {\\"v\\": [\\"hunter2x\\"]}, \\"a\\": [\\"c\\"]}', ["hunter2x"]),
        ('{"token": {"type": "string"}, "tokens": ["a"], "password": []}, ["b"]', []),
        ("**Password:** hunter2x\n- **API key**: a1b2c3d4\n* *Passwort*: Sommer", ["hunter2x", "a1b2c3d4", "Sommer"]),
        ("`password`: hunter2x, **Password:** `hunter3x`, __Token:__ a1b2c3d4", ["hunter2x", "hunter3x", "a1b2c3d4"]),
        ("**Password:** required\n**Token:** the one\npassword: ****", []),
        (
            'password = b"a1" api_key=f\'b2\' SECRET = rb\'c3\' pw: u\'d4\' pwd="""e5""" ',
            ["a1", "b2", "c3", "d4", "e5"],
        ),
        ('password: str = "a1", token: Final[str] = \'b2\'; secret: string | null = "c3"', ["a1", "b2", "c3"]),
        ('password: str = None, token: str = get(), secret: String = other, pw = "{pw}"', []),
        ("CREATE USER a WITH PASSWORD 'hunter2'; ALTER USER 'a'@'%' IDENTIFIED BY 'hunter 3'", ["hunter2", "hunter 3"]),
        ("ALTER ROLE a ENCRYPTED PASSWORD 'a''b'", ["a''b"]),
        ("a user's invalid password 'field', user stories identified by 'name', login page; password 'hint'", []),
        ("password: letmein", ["letmein"]),
        ("user: x\npassword: letmein\nhost: y", ["letmein"]),
        ("- Passwort: Sommer\r\n  'пароль: корова'", ["Sommer", "корова"]),
        ("password: required\nPasswort: bitte\nPassword: forgotten?\npassword:\nhost", []),
        ("say the password: letmein\npassword: see the vault\ntoken: expires", []),
    ],
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_recogniser_finds_its_examples_whole(kind: str) -> None:
    """Each recogniser finds its examples whole, without the text around them."""
    for text, expected in EXAMPLES[kind]:
        if expected is None:
            assert len(found(kind, text)) == 1
            assert "MII" not in Redactor({"recognisers": kind}).text(text)
        else:
            assert found(kind, text) == expected, text


SEPARATORS = (
    *(
        " ",
        "  ",
        "    ",
        "\n",
        "\t",
        ", ",
        " / ",
        "/",
        " - ",
        " \u2013 ",
        "\u2014",
        ". ",
        " | ",
        "\u3001",
        "\u30fb",
        "\uff0c",
    ),
    *("\u3002", "\u00a0", "\\n", "\\t", "\\r\\n", " + "),
)
"""What may stand between the items of a list; some are escapes of JSON."""


@pytest.mark.parametrize("separator", SEPARATORS, ids=map(repr, SEPARATORS))
@pytest.mark.parametrize("number", ["0171 1234567", "030/901820", "06 12 34 56 78", "+49 30 901820", "(555) 234-5678"])
def test_every_telephone_number_of_a_list_is_found_at_once(number: str, separator: str) -> None:
    """In a list of telephone numbers every one is found in one look, whatever separates them."""
    text = separator.join([number] * 12)

    assert Redactor("default").text(text) == separator.join(["[REDACTED]"] * 12)
    assert len(found("phone", text)) == 12


@pytest.mark.parametrize("separator", SEPARATORS, ids=map(repr, SEPARATORS))
@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_list_of_private_values_is_never_refused(kind: str, separator: str) -> None:
    """Many values of one kind in a row are redacted, and not refused since each look finds one more."""
    texts = [sample.text for sample in samples() if any(found == kind for *_, found in sample.spans)]

    text = separator.join(texts[:40])

    assert "[REDACTED]" in Redactor("default").text(text)
    assert "[REDACTED]" in Redactor({"recognisers": kind}).text(text)


LANGUAGES = """
Das Passwort lautet *hunter2*, mein Kennwort ist *hunter3*.
la clave es *hunter2*, contrasenya: *hunter3*, contrasinal=*hunter4*
minha senha é *hunter2*, a palavra-passe: *hunter3*
wachtwoord: *hunter2*, het wagwoord is *hunter3*
lösenordet är *hunter2*, losenord: *hunter3*, adgangskoden er *hunter4*, passord: *hunter5*, salasanani: *hunter6*
hasło: *hunter2*, haslo=*hunter3*, heslo: *hunter4*, jelszó: *hunter5*, geslo: *hunter6*, lozinka: *hunter7*
parola: *hunter2*, parolă=*hunter6*, şifrem: *hunter3*, slaptažodis: *hunter4*, parool: *hunter5*
mật khẩu: *hunter2*, kata sandi: *hunter3*
Мой пароль: *hunter2*; ПАРОЛЬ=*корова*; пароль это *hunter3*; лозинка: *корова7*
κωδικός πρόσβασης: *hunter2*, συνθηματικό: *hunter3*
密码：*hunter2*，密碼是*hunter3*。口令: *hunter4*
パスワードは*hunter2です*。暗証番号：*4821*
비밀번호는 *hunter2*, 암호: *hunter3*
סיסמה: *hunter2*, كلمة المرور: *hunter3*, رمز عبور: *hunter4*
पासवर्ड: *hunter2*, পাসওয়ার্ড: *hunter3*, รหัสผ่าน: *hunter4*
{"пароль": "*корова*", "user": "ann"}
пароль: не менее 8 символов, парольная политика: hunter2
密码: 请输入，密码：至少8位，密码是8位，密码学: hunter2
パスワードは8文字以上です。 암호화: AES-256
parola: casa, senha: qualquer, a senha é segura, gesloten: hunter2
"""
"""One example a line; the value to be found is between asterisks."""


@pytest.mark.parametrize("linear", [True, False])
def test_passwords_are_known_by_their_names_in_other_languages(linear: bool) -> None:
    """Passwords are found by their names in other languages; prose about passwords is left alone."""
    redactor = Redactor("secrets", linear=linear)

    for line in LANGUAGES.strip().splitlines():
        assert redactor.text(line.replace("*", "")) == re.sub(r"\*.*?\*", "[REDACTED]", line)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_of_secrets_are_recognised_in_either_unicode_form(form: Literal["NFC", "NFD"]) -> None:
    """Names of secrets are recognised in either Unicode form, capitalised, and as keys."""
    names = [unicodedata.normalize(form, name.replace("_", " ")) for name in languages.LATIN]
    names += [name.replace("_", " ") for name in languages.OTHERS]

    assert [name for name in names if found("credential", f"{name}: hunter2") != ["hunter2"]] == []
    assert [name for name in names if found("credential", f"{name.capitalize()}=hunter2") != ["hunter2"]] == []
    assert [name for name in names if secret_word(name) is None] == []


def test_only_whole_words_name_a_secret() -> None:
    """Only whole words name a secret: camel case and punctuation separate words, plurals do not count."""
    secret = ["apiKey", "API_KEY", "x-api-key", "apikey", "accessToken", "token", "Authorization", "client.secret"]
    secret += ["privateKey", "SSH_KEY", "dbPassword", "user credential", "pwd", "HTTPToken", "token2"]
    secret += [
        "senha",
        "DB_SENHA",
        "hasloBazy",
        "Şifre",
        "mat khau",
        "Пароль",
        "пользователь.пароль",
        "密码",
        "userPw",
        "passcode",
    ]
    secret += ["PGPASSWORD", "dbpassword", "authtoken", "accesstoken", "SECRETKEY", "accessKey", "AccountKey", "pass"]
    harmless = ["nopasswd", "bypass", "compass", "first_pass", "passed", "SharedAccessKeyName", "monkey", "turnkey"]
    harmless += ["tokens", "maxTokens", "secretary", "keyboard", "passwords_changed", "api", "key", "tokenizer", ""]
    figures = ["token_count", "totalTokenCount", "TOKEN_LIMIT", "password_min_length", "token_type", "tokenUsage"]
    places = [
        "nextPageToken",
        "page_token",
        "NextToken",
        "continuation-token",
        "pagetoken",
        "eos_token",
        "pad token id",
    ]
    harmless += ["parolamento", "парламент", "gesloten", "pwa", "hasłowo", "статус"]

    assert [key for key in secret if secret_word(key) is None] == []
    assert [key for key in [*harmless, *figures, *places] if secret_word(key) is not None] == []
    assert [key for key in [*figures, *places] if secret_word(key, strict=True) is None] == []


def test_the_presets_name_existing_recognisers() -> None:
    """`default` is all recognisers, and every kind is in the corpus."""
    assert PRESETS["default"] == tuple(BUILT_IN)
    assert set(PRESETS["secrets"]) < set(BUILT_IN)
    assert set(POSITIVE) == set(BUILT_IN)


EDGES = st.text(alphabet=st.sampled_from("04aA .-_:@/\n?=(\"',\u00e9\u2011"), max_size=4)
"""Characters that may or may not count as the edge of a value."""


@pytest.mark.parametrize("text", ["1.ghp_{}", "see 4.sk_live_{}", "0.hooks.slack.com/services/T9Y09J/BIV71VQ/tz4NRE1"])
def test_a_key_behind_a_list_number_is_found(text: str) -> None:
    """A key behind a list's number, such as "1.", is found."""
    assert "[REDACTED]" in Redactor({"recognisers": "default"}).text(
        text.format("hk7qk71czytK9dQWXRCFgaH8qPj2dCjki40J")
    )


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("我的卡号是4111111111111111请记住", "我的卡号是[REDACTED]请记住"),
        (
            "내 번호는 010-1234-5678이고 카드는 4111 1111 1111 1111입니다",
            "내 번호는 [REDACTED]이고 카드는 [REDACTED]입니다",
        ),
        ("IBANはDE89370400440532013000です", "IBANは[REDACTED]です"),
        ("บัตร4111111111111111ครับ", "บัตร[REDACTED]ครับ"),
        ("ทดสอบ203.0.113.7ครับ", "ทดสอบ[REDACTED]ครับ"),
        ("邮箱bob@example.com请联系", "邮箱[REDACTED]请联系"),
        ("用户@例子.中国", "[REDACTED]"),
        ("联系Tel. 5959778094", "联系Tel. [REDACTED]"),
        ("né4111111111111111", "né4111111111111111"),
        ("_203.0.113.7_ _bob@example.com-", "_[REDACTED]_ [REDACTED]-"),
        ("No.203.0.113.7", "No.[REDACTED]"),
        ("1. 0171/4454138\n2) 0171/4454139", "1. [REDACTED]\n2) [REDACTED]"),
        ("SSN-219-09-9998, ORD-219-09-9998", "SSN-[REDACTED], ORD-219-09-9998"),
    ],
)
def test_adjacent_text_hides_a_value_only_if_it_could_be_part_of_it(text: str, left: str) -> None:
    """Text beside a value hides it only if it could be part of the value."""
    for linear in (True, False):
        assert Redactor({"recognisers": "default"}, linear=linear).text(text) == left


@settings(max_examples=examples(900), deadline=None)
@given(st.data())
def test_the_prefilter_never_hides_a_value_from_a_recogniser(data: st.DataObject) -> None:
    """A recogniser that the prefilter does not ask would find nothing."""
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    pieces = [make(rng) for make in rng.sample([*POSITIVE.values(), *NEGATIVE], 2)]
    pieces = ["".join(piece) if isinstance(piece, tuple) else piece for piece in pieces]
    between, before = (data.draw(st.text() | EDGES, label) for label in ("between", "before"))
    text = before + between[:6].join(pieces)
    cut = data.draw(st.integers(0, len(text)))
    scan = Scan(text := data.draw(st.sampled_from([text, text[cut:], text[:cut]])))

    for kind, recogniser in BUILT_IN.items():
        if not recogniser.may_find(scan) or not re.search(recogniser.sign, scan.ascii.decode("ascii")):
            assert list(recogniser.find(Scan(text))) == [], (kind, text)


LABELS = (
    *(
        "phone",
        "Phone number",
        "Tel.-Nr.",
        "MOB\u0130LE",
        "mob\u0131le no",
        "teléfono",
        "móvil",
        "celular",
        "ph",
        "Mob",
    ),
    *(
        "call me at",
        "text u\u017f on",
        "reach h\u0131m bac\u212a",
        "телефон",
        "Тел.",
        "моб",
        "电话",
        "電話番号",
        "手机号码是",
    ),
    *("전화번호", "휴대폰은", "هاتف", "טלפון", "โทร", "फ़ोन", "\u017f\u017fn", "soc\u0131al_Security_Number", "userSsn"),
    *("Set-Cookie", "PIN", "pin_code", "PIN-код", "PINnummer", "homePhone"),
)
"""Words before a value; some have letters that match ASCII ones only where case is ignored."""


@pytest.mark.parametrize("label", LABELS)
def test_the_prefilter_hides_no_value_behind_a_label(label: str) -> None:
    """Whatever is between a label and its value, the sign of a recogniser that finds the value is found, too."""
    seen = 0
    for glue in (
        ": ",
        " ",
        "=",
        '": "',
        '\\": \\"',
        "\uff1a",
        " is ",
        " \u0131\u017f ",
        "\\n",
        "\n\n",
        "(",
        ' "]|#- ',
        " is:\u3000",
    ):
        for value in ("5551234567", "123456789", "12 34 56 78", "sid=abc123", "4711", "+49 30 901820"):
            scan = Scan(f"x {label}{glue}{value} y")
            kinds = [kind for kind, recogniser in BUILT_IN.items() if list(recogniser.find(scan))]
            hidden = [kind for kind in kinds if not re.search(BUILT_IN[kind].sign, scan.ascii.decode("ascii"))]
            assert hidden == [], (scan.text, hidden)
            seen += len(kinds)
    assert seen > 12  # more than the international number alone


@pytest.mark.wide
def test_one_combined_re2_search_equals_asking_each_recogniser() -> None:
    """One combined look with RE2 gives the same result as asking each recogniser."""
    one, each = Redactor({"recognisers": "default"}), Redactor({"recognisers": "default"}, linear=False)
    texts = [sample.text for sample in samples()]
    texts += [" ".join(texts[i : i + 5]) for i in range(0, len(texts), 5)]

    assert [one.text(text) for text in texts] == [each.text(text) for text in texts]


@settings(max_examples=examples(300), deadline=None)
@given(st.text(alphabet=st.sampled_from("aZ09 .-:@=/+(\"'\\[]_\n\u00a0é\ud800٣²"), max_size=60))
def test_spans_of_any_text_lie_inside_it_and_are_not_empty(text: str) -> None:
    """Whatever the text, spans lie inside it and are not empty."""
    for kind, recogniser in BUILT_IN.items():
        for span in recogniser.find(Scan(text)):
            assert 0 <= span.start < span.end <= len(text)
            assert span.kind == kind


HOSTILE = [
    "a",
    "1",
    "1 ",
    "1.1.1.",
    "@a.",
    "a@b.c",
    "_a",
    ":",
    ":a",
    "://a:",
    "://a:@",
    'token:"',
    "token: '",
    "-eyJ",
    "eyJaaaaaaaa.",
]
HOSTILE += [
    "-----BEGIN PRIVATE KEY-----A",
    "sk-",
    "-SG.aaaaaaaaaaaaaaaaaaaa",
    "DE00 ",
    "AB12",
    "password.",
    "bearer ",
    "\\",
]
HOSTILE += [
    "0 1",
    "(1) ",
    "1234 ",
    "4111 1111 1111 1111 ",
    "123-45-",
    "phone 1234567 ",
    "password=[REDACTED]",
    "[REDACTED]",
]
HOSTILE += [
    "пароль ",
    "парол",
    "密码",
    "密码是",
    "密码是1",
    "lo\u0308senord",
    "1234\n",
    "12345678  ",
    "de89",
    "curl -u a:",
    "mysql a ",
    "<password ",
    "password: a\n",
    "pass:'",
    '"password":[',
    '"password":["',
    '\\"password\\":[\\"a',
    '"password":["\\"',
    '" "@',
    "4111 1111\n",
    "a\u0301@",
    "र\u093e.",
    "**password:** ",
    "alter user password '",
    "create user identified by 'a",
    "xoxd-",
    "eyJaaaaaaaa..",
    "password: str = b'",
]


@pytest.mark.sampled
@pytest.mark.parametrize("size", [300_000, pytest.param(3_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_texts_are_checked_in_linear_time(unit: str, size: int) -> None:
    """Hostile texts are checked in linear time; quadratic work would exceed the test's time limit."""
    text = (unit * (size // len(unit) + 1))[:size]
    unchanged = Redactor({"recognisers": "default"}).text(text) == text

    assert unchanged or any(recogniser.may_find(Scan(text)) for recogniser in BUILT_IN.values())


@pytest.mark.parametrize("unit", ["0000\n", "1234\n", "4111 1111\n", "12345678  "])
def test_only_one_group_beside_a_card_in_a_column_is_checked(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a column of numbers only one group beside a card number is looked at, not all behind it."""
    looked_at = list[int]()

    def counted(*lists: list[object], strict: bool = False) -> object:
        looked_at.extend(map(len, lists))
        return zip(*lists, strict=strict)

    monkeypatch.setattr(cards, "zip", counted, raising=False)

    assert not list(BUILT_IN["card"].find(Scan(unit * 2_000)))

    assert max(looked_at) <= 1


def test_ten_megabytes_of_ordinary_text_are_checked() -> None:
    """A text of 10 MB is checked completely, and a value at its end is found."""
    text = (PROSE[0] + "\n") * (10_000_000 // (len(PROSE[0]) + 1)) + "bob@example.com"

    cleaned = Redactor({"recognisers": "default"}).text(text)

    assert cleaned.endswith("\n[REDACTED]")
    assert len(cleaned) == len(text) - len("bob@example.com") + len("[REDACTED]")
