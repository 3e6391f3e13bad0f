"""The error of everything that reads Nova's messages."""

SHOWN_MAX = 200
FIELD_MAX, REASON_MAX = 300, 1000


class RefusedError(Exception):
    """A message of Nova that cannot be read, or asks for what cannot be honoured. `field` is the path of the value."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        # A field may be a key of the sender's, and a reason may repeat it.
        self.field = field[:FIELD_MAX]
        self.value = shown(value)
        self.reason = reason[:REASON_MAX]
        super().__init__(f"{self.field} is {self.value}: {self.reason}")


class UnknownNameError(RefusedError):
    """A host or a cell that is not known here. Nova may have discovered it since it was read."""


def shown(value: object) -> str:
    """A value as an error shows it: never long, and of an object or a list only how large it is."""
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, list | tuple | set | frozenset):
        return f"a list of {len(value)}"
    if value is None:
        return "null"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > SHOWN_MAX:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}... ({len(text)} characters)"
