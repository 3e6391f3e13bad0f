"""JSON Patch on one field of a node: add, replace and remove, on the field or inside it."""

from collections.abc import Mapping, Sequence
from typing import Any

from compute_sim.ironic.core.refusals import BAD_REQUEST, Refused

OPERATIONS = ("add", "replace", "remove")


def flaw_of(operations: object) -> str:
    """Why this is not a valid patch; empty if it is."""
    if not isinstance(operations, Sequence) or isinstance(operations, str):
        return "a patch is a list of operations"
    for each in operations:
        if not isinstance(each, Mapping):
            return f"an operation is an object, not {each!r}"
        path = each.get("path")
        if not isinstance(path, str) or not path.startswith("/") or path == "/":
            return f"path is {path!r}, must begin with / and name a field"
        if each.get("op") not in OPERATIONS:
            return f"op is {each.get('op')!r}, must be one of {', '.join(OPERATIONS)}"
        if each["op"] != "remove" and "value" not in each:
            return f"{each['op']} of {path} has no value"
    return ""


def keys_of(path: str) -> list[str]:
    """The field and the keys inside it."""
    return [key.replace("~1", "/").replace("~0", "~") for key in path[1:].split("/")]


def patched(value: Any, keys: Sequence[str], operation: Mapping[str, Any]) -> Any | Refused:  # noqa: PLR0911 - one for each case
    """The field's value after the operation at these keys inside it."""
    if not keys:
        return None if operation["op"] == "remove" else operation["value"]
    key, op = keys[0], operation["op"]
    if isinstance(value, list):
        return _patched_list(value, key, keys[1:], operation)
    if not isinstance(value, Mapping):
        return _cannot(operation, f"{key!r} is inside of something that has no keys")
    if len(keys) > 1:
        if key not in value:
            return _cannot(operation, f"there is no {key!r}")
        inner = patched(value[key], keys[1:], operation)
        return inner if isinstance(inner, Refused) else {**value, key: inner}
    if op != "add" and key not in value:
        return _cannot(operation, f"there is no {key!r}")
    if op == "remove":
        return {other: kept for other, kept in value.items() if other != key}
    return {**value, key: operation["value"]}


def _patched_list(
    items: Sequence[Any], key: str, keys: Sequence[str], operation: Mapping[str, Any]
) -> Any | Refused:
    op, count = operation["op"], len(items)
    index = count if key == "-" else int(key) if key.isdecimal() else -1
    if not 0 <= index < count + (op == "add" and not keys):
        return _cannot(operation, f"there is no item {key!r}")
    if keys:
        inner = patched(items[index], keys, operation)
        return inner if isinstance(inner, Refused) else [*items[:index], inner, *items[index + 1 :]]
    middle = [] if op == "remove" else [operation["value"]]
    return [*items[:index], *middle, *items[index + (op != "add") :]]


def _cannot(operation: Mapping[str, Any], why: str) -> Refused:
    return Refused(BAD_REQUEST, f"The patch {operation['op']} {operation['path']} can not be applied: {why}.")
