"""Names the field and the value that make a JSON text unreadable, for the author of the text.

Such texts are rare, so this may take time.
"""

import re
from typing import Any

import msgspec

# All that msgspec raises: no JSON, no UTF-8, nested too deep, or not as the type says.
NOT_AS_TYPED = (msgspec.MsgspecError, ValueError, RecursionError)
# And all that a walk along a path through any JSON raises.
_NOT_FOUND = (*NOT_AS_TYPED, LookupError, TypeError)

SHOWN_MAX = 80
_MISSING = re.compile(r"missing required field `(?P<key>[^`]+)`")
_DATA = "ironic_object.data"


def flaw_of(problem: Exception, text: bytes | str) -> str:
    """The decoder's complaint, with the field and the value in front."""
    if isinstance(problem, RecursionError):
        return "nested too deep to be read"
    complaint, _, path = str(problem)[:1_000].partition(" - at `$")
    keys = _keys_of(path.rstrip("`"))
    if missing := _MISSING.search(complaint):
        return f"{_field_of([*keys, missing['key']])} is missing"
    if not keys:
        return f"not a notification: {complaint}"
    return f"{_field_of(keys)} is {_value_at(keys, text)}: {complaint}"


def _keys_of(path: str) -> list[str]:
    """The keys of a path such as `.ironic_object.data.traits[...]`. The dot in `ironic_object.data` belongs to the key itself,
    as in `oslo.message`.
    """
    whole = path.replace("ironic_object.", "ironic_object ").replace("oslo.", "oslo ")
    return [key.replace(" ", ".") for key in re.split(r"[.\[]", whole.replace("]", "")) if key.strip(".")]


def _field_of(keys: list[str]) -> str:
    """The name of a field as in Ironic's documentation: without a leading `ironic_object.data`, and without the
    indexes of lists.
    """
    inner = keys[1:] if keys[0] == _DATA else keys
    return ".".join(key for key in inner or keys if not key.isdigit())


def _value_at(keys: list[str], text: bytes | str) -> str:
    try:
        value: Any = msgspec.json.decode(text)
        for key in keys:
            value = value[int(key)] if isinstance(value, list) else value[key]
        return shown(value)
    except _NOT_FOUND:
        return "not as it must be"


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
