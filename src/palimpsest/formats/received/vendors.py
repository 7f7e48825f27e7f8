"""All that knows the vendors' shapes, which is loaded when the first is given."""

from palimpsest.formats.received.recognise import recognise

__all__ = ["recognise"]
