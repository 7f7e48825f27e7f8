"""The times that an English question mentions: dates, months, years, and expressions relative to today. Pure.

Days are in UTC. A date without a year is the last such date that is not after today.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta

import msgspec

from palimpsest.log.entry import microseconds_of, moment

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTH = (
    r"(?P<month>Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
            "nine": 9, "ten": 10}  # fmt: skip
_NUMBER = rf"\d{{1,3}}|{'|'.join(_NUMBERS)}"


class Span(msgspec.Struct, frozen=True, gc=False):
    """A time that is mentioned: from `since` to before `until`, in microseconds since 1970, UTC."""

    since: int
    until: int


def spans(text: str, now: int) -> list[Span]:
    """Return the times that a text mentions, each once, in the order of their forms: days, months, years, relative
    times.

    Args:
        text: A question in English. Dates like 2023-05-08 are recognised in any language.
        now: The time to which "yesterday" and "last May" are relative, in microseconds since 1970.
    """
    today = moment(now).date()
    mentioned: list[Span] = []
    words_said = set(_WORDS(text.lower()))
    for needed, pattern, meaning in _FORMS:
        if words_said.isdisjoint(needed):
            continue
        for match in pattern.finditer(text):
            meant = _possible(meaning, match, today)
            if meant is not None:
                span = Span(_start(meant[0]), _start(meant[1]))
                if span not in mentioned:
                    mentioned.append(span)
        text = pattern.sub(" ", text)  # so that the year of a date is not found again as a year
    return mentioned


def days_of(span: Span) -> Iterator[date]:
    """Yield each day of a span.

    Args:
        span: As `spans` returns it.
    """
    day, end = moment(span.since).date(), moment(span.until).date()
    while day < end:
        yield day
        day += timedelta(days=1)


_Meaning = Callable[[re.Match[str], date], tuple[date, date]]


def _possible(meaning: _Meaning, match: re.Match[str], today: date) -> tuple[date, date] | None:
    """Return what a match means, or None for a date that no calendar has, such as 31 June."""
    try:
        return meaning(match, today)
    except (ValueError, OverflowError):
        return None


def _start(day: date) -> int:
    return microseconds_of(datetime(day.year, day.month, day.day, tzinfo=UTC))


def _one_day(day: date) -> tuple[date, date]:
    return day, day + timedelta(days=1)


def _one_month(year: int, month: int) -> tuple[date, date]:
    return date(year, month, 1), date(year + month // 12, month % 12 + 1, 1)


def _month_of(match: re.Match[str]) -> int:
    name = match["month"][:3].lower()
    return next(number for number, month in enumerate(_MONTHS, 1) if month.startswith(name))


def _iso_day(match: re.Match[str], _: date) -> tuple[date, date]:
    return _one_day(date(int(match["year"]), int(match[2]), int(match["day"])))


def _named_day(match: re.Match[str], today: date) -> tuple[date, date]:
    month, day = _month_of(match), int(match["day"])
    if match["year"]:
        return _one_day(date(int(match["year"]), month, day))
    this = date(today.year, month, day)
    return _one_day(this if this <= today else this.replace(year=today.year - 1))


def _month_and_year(match: re.Match[str], _: date) -> tuple[date, date]:
    return _one_month(int(match["year"]), _month_of(match))


def _named_month(match: re.Match[str], today: date) -> tuple[date, date]:
    month = _month_of(match)
    last = match["which"].lower() == "last"
    return _one_month(today.year - (month > today.month or (last and month == today.month)), month)


def _named_year(match: re.Match[str], _: date) -> tuple[date, date]:
    return date(int(match["year"]), 1, 1), date(int(match["year"]) + 1, 1, 1)


def _near_day(match: re.Match[str], today: date) -> tuple[date, date]:
    return _one_day(today - timedelta(days=1) if match[0].lower() == "yesterday" else today)


def _weekday(match: re.Match[str], today: date) -> tuple[date, date]:
    back = (today.weekday() - _DAYS.index(match["weekday"].lower()) - 1) % 7 + 1
    return _one_day(today - timedelta(days=back))


def _this_or_last(match: re.Match[str], today: date) -> tuple[date, date]:
    last, unit = match["which"].lower() == "last", match["unit"].lower()
    if unit == "week":
        monday = today - timedelta(days=today.weekday() + 7 * last)
        return monday, monday + timedelta(days=7)
    if unit == "month":
        first = today.replace(day=1) - timedelta(days=1) if last else today
        return _one_month(first.year, first.month)
    return date(today.year - last, 1, 1), date(today.year - last + 1, 1, 1)


def _ago(match: re.Match[str], today: date) -> tuple[date, date]:
    """Return a span around that time ago: a day, or half a week, half a month, half a year to each side."""
    number = _NUMBERS.get(match["number"].lower()) or int(match["number"])
    days = {"day": 1, "week": 7, "month": 30, "year": 365}[match["unit"].lower()]
    middle = today - timedelta(days=number * days)
    return middle - timedelta(days=days // 2), middle + timedelta(days=days // 2 + 1)


_WORDS = re.compile(r"[a-z]+|(?:19|20)(?=\d\d)").findall
_OF_MONTHS = (*_MONTHS, *(month[:3] for month in _MONTHS), "sept")
_OF_YEARS = ("19", "20")

# Each form of a time: the words of which a text must have one before the pattern is tried (most questions mention no
# time, and are done quickly), the pattern, and the function that says what a match means.
_FORMS: tuple[tuple[frozenset[str], re.Pattern[str], _Meaning], ...] = tuple(
    (frozenset(needed), re.compile(rf"(?<!\w){pattern}", flags), meaning)
    for needed, pattern, flags, meaning in (
        (_OF_YEARS, rf"{_YEAR}-(\d\d)-(?P<day>\d\d)(?!\d)", 0, _iso_day),
        (_OF_MONTHS, rf"{_DAY} (?:of )?{_MONTH},?(?: {_YEAR})?(?!\w)", 0, _named_day),
        (_OF_MONTHS, rf"{_MONTH} {_DAY}(?!\w),?(?: {_YEAR}(?!\w))?", 0, _named_day),
        (_OF_MONTHS, rf"{_MONTH},? {_YEAR}(?!\w)", 0, _month_and_year),
        (_OF_MONTHS, rf"(?P<which>[Ii]n|[Ll]ast|[Tt]his|[Ss]ince|[Dd]uring|of|late) {_MONTH}(?!\w)", 0, _named_month),
        (_OF_YEARS, rf"(?<![.,$€£-]){_YEAR}(?![\w%€-]|[.,]\d)", 0, _named_year),
        (("yesterday", "today"), r"(?:yesterday|today)(?!\w)", re.IGNORECASE, _near_day),
        (_DAYS, rf"(?:last|on|this) (?P<weekday>{'|'.join(_DAYS)})(?!\w)", re.IGNORECASE, _weekday),
        (("last", "this"), r"(?P<which>last|this) (?P<unit>week|month|year)(?!\w| of)", re.IGNORECASE, _this_or_last),
        (("ago",), rf"(?P<number>{_NUMBER}) (?P<unit>day|week|month|year)s? ago(?!\w)", re.IGNORECASE, _ago),
    )
)
