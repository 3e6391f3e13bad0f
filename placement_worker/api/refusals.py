"""Translates refusing verdicts into HTTP errors.

Clients of Placement read the text as well as the status and the code, and its conformance suite requires many texts; those
are used here. `doing` says what was tried, and begins the sentence.
"""

from collections.abc import Iterable

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
from bus.messages.placement import DoesNotFit, InventoryInUse, NotAllowed, Shortfall
from placement_worker.api.problems import (
    CANNOT_DELETE_PARENT,
    CONCURRENT_UPDATE,
    DUPLICATE_NAME,
    INVENTORY_IN_USE,
    PROVIDER_NOT_FOUND,
    TOO_COSTLY,
    ApiError,
    bad_request,
    conflict,
    not_found,
)

_SHORTFALLS_TOLD_MAX = 10


# A table: one case for each verdict.
def refusal(verdict: WriteVerdict, doing: str) -> ApiError:  # noqa: C901, PLR0911, PLR0912
    """The usual meaning of this verdict; endpoints handle their special cases themselves."""
    match verdict:
        case UnknownProvider():
            return _unknown_provider(verdict, doing)
        case UnknownClass(names=names):
            return bad_request(f"{doing}: {no_such_class(names)}")
        case UnknownTrait(names=names):
            return bad_request(f"{doing}: {no_such_trait(names)}")
        case UnknownConsumer(consumer=consumer):
            return not_found(f"No allocations for consumer '{consumer}'")
        case GenerationMoved(provider=provider, seen=seen, current=current):
            return conflict(
                f"{doing}: resource provider generation conflict: {provider} has moved, "
                f"actual: {current}, given: {seen}",
                CONCURRENT_UPDATE,
            )
        case ConsumerMoved(consumer=consumer, seen=seen, current=current):
            return conflict(
                f"{doing}: {consumer}: consumer generation conflict - "
                f"expected {_or_null(current)} but got {_or_null(seen)}",
                CONCURRENT_UPDATE,
            )
        case NameTaken(name=name):
            return conflict(f"Conflicting resource provider name: {name} already exists.", DUPLICATE_NAME)
        case IdTaken(provider=provider):
            return conflict(f"Conflicting resource provider uuid: {provider} already exists.", DUPLICATE_NAME)
        case HasChildren(provider=provider, child=child):
            return conflict(
                f"Unable to delete parent resource provider {provider}: It has child resource providers. "
                f"One of them is {child}.",
                CANNOT_DELETE_PARENT,
            )
        case InventoryPresent(provider=provider, resource=resource):
            return conflict(
                f"Update conflict: {provider} has an inventory of {resource} already", CONCURRENT_UPDATE
            )
        case InventoryAbsent(provider=provider, resource=resource):
            return not_found(f"No inventory of class {resource} for {provider}")
        case InventoryInUse(provider=provider, resource=resource, used=used):
            return conflict(
                f"{doing}: {in_use(str(provider), (resource,))}: {used} of {resource} is held",
                INVENTORY_IN_USE,
            )
        case NameInUse(name=name, provider=provider):
            return conflict(f"{doing}: {name} is in use by provider {provider}")
        case AlreadyThere(name=name):
            return conflict(f"{doing}: {name} exists already")
        case DoesNotFit(shortfalls=shortfalls):
            return conflict(f"{doing}: {_what_is_short(shortfalls)}")
        case NotAllowed(field=field, reason=reason):
            return bad_request(f"{doing}: {field}: {reason}")
        case _:
            raise AssertionError(f"{verdict!r} is not a refusal")


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


def no_such_class(names: tuple[str, ...]) -> str:
    return f"No such resource class {', '.join(names)}."


def no_such_trait(names: tuple[str, ...]) -> str:
    return f"No such trait(s): {', '.join(names)}."


def no_such_provider(provider: str) -> ApiError:
    return not_found(f"No resource provider with uuid {provider} found")


def in_use(provider: str, resources: Iterable[str]) -> str:
    return f"Inventory for '{', '.join(resources)}' on resource provider '{provider}' in use"


def _unknown_provider(verdict: UnknownProvider, doing: str) -> ApiError:
    """Depends on where it was named: in a path it is a 404, in a body a 400."""
    match verdict.field:
        case "parent":
            return bad_request(f"{doing}: parent provider UUID does not exist: {verdict.provider}")
        case "allocations":
            return bad_request(
                f"{doing}: Allocation for resource provider '{verdict.provider}' that does not exist"
            )
        case "inventories":
            return bad_request(
                f"{doing}: resource provider {verdict.provider} does not exist", PROVIDER_NOT_FOUND
            )
        case _:
            return no_such_provider(str(verdict.provider))


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
                f"{where}: asked {short.asked}, free {short.free}. "
                "The requested amount would exceed the capacity"
            )
        case rule:
            return f"{where}: asked {short.asked}, and its {rule} is {short.bound}"


def _or_null(generation: int | None) -> str:
    return "null" if generation is None else str(generation)
