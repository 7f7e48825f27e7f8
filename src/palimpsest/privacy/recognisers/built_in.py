"""The built-in recognisers, by name, and the presets. Pure.

None needs anything but the text, and all take linear time. They find what has a form: names of people, postal
addresses, dates of birth, health, belief and the like have none and cannot be found offline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from palimpsest.privacy import Span
from palimpsest.privacy.recognisers.addresses import IP_SIGN, emails, ip_addresses, may_be_ip
from palimpsest.privacy.recognisers.cards import CARD_SIGN, cards, may_be_card
from palimpsest.privacy.recognisers.credentials import (
    API_KEY_SIGN,
    CREDENTIAL_SIGN,
    api_keys,
    credentials,
    may_be_api_key,
    may_hold_credential,
    private_keys,
)
from palimpsest.privacy.recognisers.numbers import (
    DE_TAX_ID_SIGN,
    FR_NIR_SIGN,
    IBAN_SIGN,
    UK_NINO_SIGN,
    US_SSN_SIGN,
    de_tax_ids,
    fr_nirs,
    ibans,
    uk_ninos,
    us_ssns,
)
from palimpsest.privacy.recognisers.phones import PHONE_SIGN, phones
from palimpsest.privacy.recognisers.scanning import Scan


class BuiltIn(NamedTuple):
    """A recogniser, with two checks that show quickly that it need not be called.

    `sign` is a regular expression in RE2's dialect over the text in ASCII ("?" for every other character): if it
    matches nothing, the recogniser finds nothing. `may_find` is more exact, and costs more.
    """

    find: Callable[[Scan], Iterable[Span]]
    may_find: Callable[[Scan], object]
    sign: str


def _runs(scan: Scan) -> object:
    return scan.runs


BUILT_IN: dict[str, BuiltIn] = {
    "private_key": BuiltIn(private_keys, lambda scan: scan.capitals and "BEGIN " in scan.text, "-----BEGIN"),
    "credential": BuiltIn(credentials, may_hold_credential, CREDENTIAL_SIGN),
    "api_key": BuiltIn(api_keys, may_be_api_key, API_KEY_SIGN),
    "email": BuiltIn(emails, lambda scan: "@" in scan.text or "%40" in scan.text, "@|%40"),
    "iban": BuiltIn(ibans, lambda scan: scan.digits >= 8, IBAN_SIGN),
    "card": BuiltIn(cards, may_be_card, CARD_SIGN),
    "us_ssn": BuiltIn(us_ssns, _runs, US_SSN_SIGN),
    "uk_nino": BuiltIn(uk_ninos, lambda scan: scan.capitals and scan.digits >= 6, UK_NINO_SIGN),
    "fr_nir": BuiltIn(fr_nirs, _runs, FR_NIR_SIGN),
    "de_tax_id": BuiltIn(de_tax_ids, _runs, DE_TAX_ID_SIGN),
    "phone": BuiltIn(phones, _runs, PHONE_SIGN),
    "ip": BuiltIn(ip_addresses, may_be_ip, IP_SIGN),
}
"""In order of precedence: if several find the same place, the first one counts."""

PRESETS: dict[str, tuple[str, ...]] = {
    "default": tuple(BUILT_IN),
    "secrets": ("private_key", "credential", "api_key"),
}
"""`default` is all of them; `secrets` is what gives access, and nothing about people."""
