"""The functions that know the vendors' shapes. Imported when something that is not plain comes for the first time."""

from palimpsest.formats.received.recognise import recognise
from palimpsest.formats.received.stream import AnswerStream
from palimpsest.formats.received.usage import reported_by

__all__ = ["AnswerStream", "recognise", "reported_by"]
