"""Translates refusing verdicts into HTTP errors.

Clients of Placement read the text as well as the status and the code, and its conformance suite requires many texts; those
are used here.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from msgspec import Struct

from bus.messages.administration import (
    AlreadyThere,
    ConsumerMoved,
    GenerationMoved,
    HasChildren,
    IdTaken,
    InventoryAbsent,
    InventoryPresent,
    NameInUse,
    NameTaken,
    UnknownClass,
    UnknownConsumer,
    UnknownProvider,
    UnknownTrait,
    WriteVerdict,
)
from bus.messages.candidates import TooCostly
from bus.messages.placement import (
    DoesNotFit,
    InventoryInUse,
    NotAllowed,
    Shortfall,
)
from placement_worker.api.values.problems import (
    CANNOT_DELETE_PARENT,
    CONCURRENT_UPDATE,
    DUPLICATE_NAME,
    INVENTORY_IN_USE,
    PROVIDER_NOT_FOUND,
    TOO_COSTLY,
    UNDEFINED,
    ApiError,
    bad_request,
    not_found,
)

_SHORTFALLS_TOLD_MAX = 10

NO_SUCH_CLASS: Final = "No such resource class {names}."
NO_SUCH_TRAIT: Final = "No such trait(s): {names}."
IN_USE: Final = "Inventory for '{resource}' on resource provider '{provider}' in use"


class HttpRefusal(Struct, frozen=True):
    """The HTTP error for one kind of verdict.

    In `text`, names in braces stand for the verdict's fields; `{doing}` is the beginning of the sentence, which says what
    the client tried.
    """

    status: HTTPStatus
    text: str
    code: str = UNDEFINED


Refusals = Mapping[type[WriteVerdict], HttpRefusal]

# For endpoints without special cases.
AS_USUAL: Final[Refusals] = {}

_USUAL: Final[Refusals] = {
    UnknownProvider: HttpRefusal(HTTPStatus.NOT_FOUND, "No resource provider with uuid {provider} found"),
    UnknownClass: HttpRefusal(HTTPStatus.BAD_REQUEST, f"{{doing}}: {NO_SUCH_CLASS}"),
    UnknownTrait: HttpRefusal(HTTPStatus.BAD_REQUEST, f"{{doing}}: {NO_SUCH_TRAIT}"),
    UnknownConsumer: HttpRefusal(HTTPStatus.NOT_FOUND, "No allocations for consumer '{consumer}'"),
    GenerationMoved: HttpRefusal(
        HTTPStatus.CONFLICT,
        "{doing}: resource provider generation conflict: {provider} has moved, actual: {current}, given: {seen}",
        CONCURRENT_UPDATE,
    ),
    ConsumerMoved: HttpRefusal(
        HTTPStatus.CONFLICT,
        "{doing}: {consumer}: consumer generation conflict - expected {current} but got {seen}",
        CONCURRENT_UPDATE,
    ),
    NameTaken: HttpRefusal(
        HTTPStatus.CONFLICT,
        "Conflicting resource provider name: {name} already exists.",
        DUPLICATE_NAME,
    ),
    IdTaken: HttpRefusal(
        HTTPStatus.CONFLICT,
        "Conflicting resource provider uuid: {provider} already exists.",
        DUPLICATE_NAME,
    ),
    HasChildren: HttpRefusal(
        HTTPStatus.CONFLICT,
        "Unable to delete parent resource provider {provider}: It has child resource providers. "
        "One of them is {child}.",
        CANNOT_DELETE_PARENT,
    ),
    InventoryPresent: HttpRefusal(
        HTTPStatus.CONFLICT,
        "Update conflict: {provider} has an inventory of {resource} already",
        CONCURRENT_UPDATE,
    ),
    InventoryAbsent: HttpRefusal(HTTPStatus.NOT_FOUND, "No inventory of class {resource} for {provider}"),
    InventoryInUse: HttpRefusal(
        HTTPStatus.CONFLICT, f"{{doing}}: {IN_USE}: {{used}} of {{resource}} is held", INVENTORY_IN_USE
    ),
    NameInUse: HttpRefusal(HTTPStatus.CONFLICT, "{doing}: {name} is in use by provider {provider}"),
    AlreadyThere: HttpRefusal(HTTPStatus.CONFLICT, "{doing}: {name} exists already"),
    DoesNotFit: HttpRefusal(HTTPStatus.CONFLICT, "{doing}: {shortfalls}"),
    NotAllowed: HttpRefusal(HTTPStatus.BAD_REQUEST, "{doing}: {field}: {reason}"),
}
# A provider that a body names is no 404; by the field that names it.
_UNKNOWN_IN_BODY: Final[Mapping[str, HttpRefusal]] = {
    "parent": HttpRefusal(HTTPStatus.BAD_REQUEST, "{doing}: parent provider UUID does not exist: {provider}"),
    "allocations": HttpRefusal(
        HTTPStatus.BAD_REQUEST,
        "{doing}: Allocation for resource provider '{provider}' that does not exist",
    ),
    "inventories": HttpRefusal(
        HTTPStatus.BAD_REQUEST,
        "{doing}: resource provider {provider} does not exist",
        PROVIDER_NOT_FOUND,
    ),
}


def refusal(verdict: WriteVerdict, doing: str, special: Refusals = AS_USUAL, **words: str) -> ApiError:
    """The HTTP error for a verdict that refuses. An endpoint's own errors, in `special`, come before the usual ones.

    `doing` says what the client tried. `words` fill further names in braces, which only texts in `special` have.
    """
    said = special.get(type(verdict)) or _USUAL.get(type(verdict))
    if isinstance(verdict, UnknownProvider):
        said = _UNKNOWN_IN_BODY.get(verdict.field, said)
    if said is None:
        raise AssertionError(f"{verdict!r} is not a refusal")
    fields = {field: _in_words(getattr(verdict, field)) for field in verdict.__struct_fields__}
    if isinstance(verdict, DoesNotFit):
        fields["shortfalls"] = _what_is_short(verdict.shortfalls)
    return ApiError(said.status, said.text.format_map({"doing": doing, **words, **fields}), said.code)


def too_costly(verdict: TooCostly) -> ApiError:
    said = {
        "steps": f"The search was stopped after {verdict.spent} steps; at most {verdict.budget} are allowed",
        "bytes": f"The search was stopped when it used {verdict.spent} bytes; at most {verdict.budget} are allowed",
        "answer_bytes": f"The answer would have {verdict.spent} bytes; at most {verdict.budget} are allowed",
    }[verdict.what]
    return bad_request(
        f"{said}. There may be more candidates: ask for fewer groups, for groups that do not ask for the same "
        "resources, or for fewer candidates by limit",
        TOO_COSTLY,
    )


def no_such_provider(provider: str) -> ApiError:
    return not_found(f"No resource provider with uuid {provider} found")


def _in_words(value: object) -> str:
    match value:
        case None:
            return "null"
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def _what_is_short(shortfalls: tuple[Shortfall, ...]) -> str:
    told = "; ".join(map(_shortfall, shortfalls[:_SHORTFALLS_TOLD_MAX]))
    more = len(shortfalls) - _SHORTFALLS_TOLD_MAX
    return f"{told}; and {more} more" if more > 0 else told


def _shortfall(short: Shortfall) -> str:
    where = f"{short.resource} on resource provider '{short.provider}'"
    match short.rule:
        case "no_inventory":
            return (
                f"Inventory for '{short.resource}' on resource provider '{short.provider}' invalid: "
                f"asked {short.asked}, and it has none of that class"
            )
        case "capacity":
            return (
                f"{where}: asked {short.asked}, free {max(short.free, 0)}. "
                "The requested amount would exceed the capacity"
            )
        case rule:
            return f"{where}: asked {short.asked}, and its {rule} is {short.bound}"
