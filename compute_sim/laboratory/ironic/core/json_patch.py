"""JSON Patch on one field of a node: add, replace and remove, on the field or inside of an object. Not in lists, which nobody patches."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct

from compute_sim.laboratory.ironic.core.refusals import BAD_REQUEST, RequestRefused


class Operation(Struct, frozen=True):
    op: Literal["add", "replace", "remove"]
    path: Annotated[str, Meta(pattern="^/.")]
    value: Any = UNSET

    def __post_init__(self) -> None:
        if self.op != "remove" and self.value is UNSET:
            raise ValueError(f"{self.op} of {self.path} has no value")

    @property
    def keys(self) -> list[str]:
        """The keys that `path` consists of: the name of the node's field, then the keys inside of its value."""
        return [key.replace("~1", "/").replace("~0", "~") for key in self.path[1:].split("/")]


def operations_of(document: object) -> tuple[Operation, ...]:
    try:
        return msgspec.convert(document, tuple[Operation, ...])
    except msgspec.ValidationError as problem:
        raise RequestRefused(BAD_REQUEST, f"The patch is not valid: {problem}.") from None


def patched(value: Any, keys: Sequence[str], operation: Operation) -> Any:
    """The value of a field after the patch operation. `keys` leads to the place inside of the value."""
    if not keys:
        return None if operation.op == "remove" else operation.value
    key, *inside = keys
    if not isinstance(value, Mapping):
        raise _cannot(operation, f"{key!r} is inside of something that has no keys")
    if key not in value and (inside or operation.op != "add"):
        raise _cannot(operation, f"there is no {key!r}")
    if operation.op == "remove" and not inside:
        return {other: kept for other, kept in value.items() if other != key}
    return {**value, key: patched(value.get(key), inside, operation)}


def _cannot(operation: Operation, why: str) -> RequestRefused:
    return RequestRefused(
        BAD_REQUEST, f"The patch {operation.op} {operation.path} can not be applied: {why}."
    )
