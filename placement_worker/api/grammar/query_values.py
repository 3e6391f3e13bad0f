"""Single values of a query: amounts, traits, aggregates, trees. The grammar as a whole is in queries.py."""

import re
from typing import Final

from bus.message import AggregateId, ProviderId
from bus.messages.placement import INTEGER_MAX
from placement_worker.api.grammar.validators import uuid_in
from placement_worker.api.values.problems import ApiError, bad_request
from placement_worker.api.values.versions import Version

Traits = tuple[tuple[str, ...], ...]
Aggregates = tuple[tuple[AggregateId, ...], ...]

FORBIDDEN_TRAITS: Final[Version] = (1, 22)
MANY_MEMBER_OF: Final[Version] = (1, 24)
FORBIDDEN_AGGREGATES: Final[Version] = (1, 32)
ANY_TRAITS: Final[Version] = (1, 39)

INVALID: Final = "Invalid query string parameters"
ONE_OR_MORE: Final = "HW_CPU_X86_VMX,CUSTOM_MAGIC"
WITH_FORBIDDEN: Final = "HW_CPU_X86_VMX,!CUSTOM_MAGIC"
# Longer than any allowed number, so that an error can still quote it as a number.
NUMBER: Final = re.compile(r"-?[0-9]{1,30}", re.ASCII)


def resources_in(value: str) -> dict[str, int]:
    if not value.strip():
        raise _badly_formed_resources("empty string")
    return dict(_resource(part) for part in value.split(","))


def _resource(part: str) -> tuple[str, int]:
    match part.split(":"):
        case [name, text]:
            amount = int(text) if NUMBER.fullmatch(text.strip()) else None
        case _:
            raise _badly_formed_resources(part)
    if amount is None:
        raise bad_request(f"Requested resource {name} expected positive integer amount. Got: {text}.")
    if amount < 1:
        raise bad_request(f"Requested resource {name} requires amount >= 1. Got: {amount}.")
    if amount > INTEGER_MAX:
        raise bad_request(f"Requested resource {name} requires amount <= {INTEGER_MAX}. Got: {amount}.")
    return name, amount


def _badly_formed_resources(got: str) -> ApiError:
    return bad_request(
        "Badly formed resources parameter. Expected resources query string parameter in form: "
        f"?resources=NAME:AMOUNT,NAME:AMOUNT. Got: {got}."
    )


def traits_in(values: list[str], version: Version) -> tuple[Traits, tuple[str, ...]]:
    """The required and the forbidden traits in the values of `required`. Until 1.38 only the last value counts."""
    if version < ANY_TRAITS:
        values = values[-1:]
    required: list[tuple[str, ...]] = []
    forbidden: list[str] = []
    for value in values:
        if value.startswith("in:"):
            required.append(_any_of(value, version))
        else:
            wanted, unwanted = each_of(value, may_forbid=version >= FORBIDDEN_TRAITS)
            required += [(trait,) for trait in wanted]
            forbidden += unwanted
    return tuple(dict.fromkeys(required)), tuple(dict.fromkeys(forbidden))


def _any_of(value: str, version: Version) -> tuple[str, ...]:
    if version < ANY_TRAITS:
        raise bad_request(
            f"{INVALID}: The format 'in:{ONE_OR_MORE}' only supported since microversion 1.39. Got: {value}"
        )
    traits = tuple(sorted({part.strip() for part in value.removeprefix("in:").split(",")}))
    if "" in traits:
        raise bad_request(
            f"{INVALID}: Expected 'required' parameter value of the form: in:{ONE_OR_MORE}. "
            f"A trait in {value!r} has no name"
        )
    if any(trait.startswith("!") for trait in traits):
        raise bad_request(
            f"{INVALID}: The format 'in:{ONE_OR_MORE}' does not support forbidden traits. Got: {value}"
        )
    return traits


def each_of(value: str, *, may_forbid: bool) -> tuple[list[str], list[str]]:
    """The required and the forbidden traits in one value, a list with commas. One `!` or several forbid a trait."""
    named = [part.strip() for part in value.split(",")]
    required = [trait for trait in named if not trait.startswith("!")]
    forbidden = [trait.lstrip("!") for trait in named if trait.startswith("!")]
    validator = WITH_FORBIDDEN if may_forbid else ONE_OR_MORE
    expected = f"{INVALID}: Expected 'required' parameter value of the form: {validator}."
    if "" in required or "" in forbidden:
        raise bad_request(f"{expected} A trait in {value!r} has no name")
    if forbidden and not may_forbid:
        raise bad_request(f"{expected} Got: {value}")
    return required, forbidden


def member_of_in(key: str, values: list[str], version: Version) -> tuple[Aggregates, tuple[AggregateId, ...]]:
    if len(values) > 1 and version < MANY_MEMBER_OF:
        raise bad_request(f"Multiple {key} parameters are not supported")
    required: list[tuple[AggregateId, ...]] = []
    forbidden: list[AggregateId] = []
    for value in values:
        aggregates = _aggregates(value.removeprefix("!"), value)
        if not value.startswith("!"):
            required.append(aggregates)
        elif version < FORBIDDEN_AGGREGATES:
            raise bad_request(
                f"Forbidden {key} parameters are not supported in the specified microversion. Got: {value}"
            )
        else:
            forbidden += aggregates
    return tuple(required), tuple(dict.fromkeys(forbidden))


def _aggregates(named: str, value: str) -> tuple[AggregateId, ...]:
    if "," in named and not named.startswith("in:"):
        raise bad_request(
            "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword using the valid "
            f"microversion. Got: {value!r}"
        )
    aggregates: dict[AggregateId, None] = {}
    for text in named.removeprefix("in:").split(","):
        aggregate = uuid_in(text)
        if aggregate is None:
            raise bad_request(
                f"{INVALID}: Expected 'member_of' parameter to contain valid UUID(s). Got: {text!r}"
            )
        aggregates[AggregateId(aggregate)] = None
    return tuple(aggregates)


def tree_in(value: str) -> ProviderId:
    provider = uuid_in(value.strip())
    if provider is None:
        raise bad_request(f"{INVALID}: Expected 'in_tree' parameter to be a format of uuid. Got: {value!r}")
    return ProviderId(provider)
