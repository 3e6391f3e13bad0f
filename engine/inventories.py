"""The values of the resource model: ids, providers with their inventories, quotas, server groups, shares and choices."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Literal, NewType
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from engine.places import PLACE_LEVELS_MAX, Place

CellName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}\Z")]

# Part of a routing key, in which `-` stands for no project.
Project = Annotated[str, Meta(pattern=r"^(?!-\Z)[a-z0-9_-]{0,64}\Z")]

# The name of a person on whose behalf a program orders; the program vouches for it. It is shown and stored, so it has no control characters.
UserName = Annotated[str, Meta(max_length=100, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]

# In the range of PostgreSQL's and AMQP's integers.
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]

# Any number that a column of 64 bits can have.
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

ProviderId = NewType("ProviderId", UUID)

ConsumerId = NewType("ConsumerId", UUID)

GroupId = NewType("GroupId", UUID)

AggregateId = NewType("AggregateId", UUID)

# PostgreSQL's integer, which is also the bound of Placement's API.
INTEGER_MAX = 2_147_483_647

Natural = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]

Positive = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]

Counter = Annotated[int, Meta(ge=0, le=2**63 - 1)]

Moment = Annotated[datetime, Meta(tz=True)]

Ratio = Annotated[float, Meta(gt=0, le=1e6)]

ResourceClass = Annotated[str, Meta(pattern=r"^[A-Z0-9_]+\Z", max_length=255)]

Trait = Annotated[str, Meta(pattern=r"^[A-Z0-9_]+\Z", max_length=255)]

ProviderName = Annotated[str, Meta(min_length=1, max_length=200)]

# A name that is looked up. It has no pattern to check on the hot path: a wrong name is just not found.
Label = Annotated[str, Meta(max_length=255)]


class Value(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The base class of all parts of messages that are not messages themselves."""


class Variant(Value, frozen=True, kw_only=True, omit_defaults=True, tag_field="is"):
    """The base class of parts of messages that come in several forms, such as verdicts. The tag `is` names the form."""


class ReportedInventory(Value, frozen=True):
    """One inventory: how much there is, and the limits for the amount of a single allocation."""

    total: Natural
    reserved: Natural = 0
    min_unit: Positive = 1
    max_unit: Positive = INTEGER_MAX
    step_size: Positive = 1
    allocation_ratio: Ratio = 1.0


class InventoryState(ReportedInventory, frozen=True):
    """One inventory, and what is in use of it."""

    used: Counter = 0


class ProviderState(Value, frozen=True):
    """The full state of one provider. `revision` orders its states.

    `internal` is a number that placement gives the provider and never gives to another one. `shape` is the shape of the
    provider's tree, stored on the root and repeated on each provider of the tree. `consumers` counts the consumers that
    hold resources and whose claims named this provider as their host.

    `made_by_name`: it was written by name, and no report has named its inventories: no report removes it. `place` says where
    a root provider is (places.py).
    """

    internal: Integer
    id: ProviderId
    name: ProviderName
    root: ProviderId
    parent: ProviderId | None = None
    cell: str = ""
    generation: Integer = 0
    shape: Integer = 0
    revision: Integer = 0
    inventories: dict[str, InventoryState] = {}
    traits: tuple[str, ...] = ()
    aggregates: tuple[AggregateId, ...] = ()
    consumers: Integer = 0
    made_by_name: bool = False
    place: str = ""


class ProviderUsage(Value, frozen=True):
    """The part of a provider that claims change: how many consumers live on it, and how much of each class is in use,
    as of `revision`. Everything else is as in revision `base`: a reader without that revision has missed a message.
    """

    internal: Integer
    id: ProviderId
    base: Integer
    revision: Integer
    generation: Integer = 0
    used: dict[str, Integer] = {}
    consumers: Integer = 0


class ReportedProvider(Value, frozen=True):
    """One provider as its reporter sees it, with exactly these inventories, traits and aggregates.

    A field that is None is not the reporter's: the provider keeps what it has. Traits that an operator set are kept too, and so
    is a place. The provider is added to the aggregates in `joins`, and keeps all others that it is in. Only a root has a place.
    """

    id: ProviderId
    name: ProviderName
    parent: ProviderId | None = None
    inventories: Annotated[dict[ResourceClass, ReportedInventory], Meta(max_length=200)] | None = None
    traits: Annotated[tuple[Trait, ...], Meta(max_length=400)] | None = None
    aggregates: Annotated[tuple[AggregateId, ...], Meta(max_length=400)] | None = None
    joins: Annotated[tuple[AggregateId, ...], Meta(max_length=400)] = ()
    place: Place | None = None


_encode = msgspec.json.Encoder().encode


def tree_fingerprint(tree: Iterable[ProviderState]) -> str:
    """A hash of the tree's providers, their parents, traits and aggregates, and of its place if it has one. Inventories are left out:
    placement itself checks whether a share still fits.
    """
    states = [*tree]
    parts = sorted((state.id, state.parent, state.traits, state.aggregates) for state in states)
    place = next((state.place for state in states if state.place and state.parent is None), "")
    return hashlib.blake2b(_encode((parts, place) if place else parts), digest_size=8).hexdigest()


# The limit on the number of instances stands among those on resource classes, whose names are in capitals.
INSTANCES = "instances"


class QuotaState(Value, frozen=True):
    """The limits of a project, and what it uses of them. `used` has also what is not limited."""

    project: str
    limits: dict[str, Counter]
    used: dict[str, Integer] = {}


# The values that occur most, here and in the messages to cells, are encoded as arrays of their fields: ["...", "VCPU", 4]. A later
# release may add fields at the end.
class ResourceAmount(Value, frozen=True, array_like=True):
    """An amount of one class from one provider."""

    provider: ProviderId
    resource: Label
    amount: Positive


class ShapeSeen(Value, frozen=True, array_like=True):
    """The shape that a provider tree had when the sender of a claim chose the host."""

    root: ProviderId
    shape: Counter


GroupPolicy = Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]


class PlaceRule(Value, frozen=True):
    """How the members of a server group are placed in the domains of one level (places.py).

    With `anti-affinity` a domain has at most `max_members` members, with `affinity` one domain has them all; a host without a domain of
    this level gets none. The soft policies only prefer the domains with the fewest members, or with the most.
    """

    level: Annotated[int, Meta(ge=1, le=PLACE_LEVELS_MAX)]
    policy: GroupPolicy
    max_members: Positive = 1


RULES_MAX = 4
PlaceRules = Annotated[tuple[PlaceRule, ...], Meta(max_length=RULES_MAX)]


class ServerGroup(Value, frozen=True):
    """The server group of a consumer. By its policy members are kept apart or together on hosts, and by its `rules` in domains."""

    id: GroupId
    policy: GroupPolicy
    max_per_host: Positive = 1
    rules: PlaceRules = ()

    @property
    def policies(self) -> frozenset[GroupPolicy]:
        """Those for hosts and for domains."""
        return frozenset([self.policy, *[rule.policy for rule in self.rules]])

    @property
    def hard_rules(self) -> tuple[PlaceRule, ...]:
        return tuple([rule for rule in self.rules if rule.policy in HARD_POLICIES])


HARD_POLICIES = ("affinity", "anti-affinity")


def rules_in(text: str | None) -> tuple[PlaceRule, ...]:
    """The rules of a group as rows store them; rows of release 0.1.0 have none."""
    return msgspec.json.decode(text, type=tuple[PlaceRule, ...]) if text else ()


def rules_as_text(rules: Sequence[PlaceRule]) -> str | None:
    return _encode(rules).decode() if rules else None


class ShapeRoom(Value, frozen=True):
    """One of the shapes that are usually asked for: what an instance of it takes, and its share of recent requests. `fit` is how many
    more of it the hosts have room for that take new instances, if nothing else is built.
    """

    amounts: dict[ResourceClass, Integer]
    share: Annotated[float, Meta(ge=0, le=1)]
    fit: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class GroupMember(Value, frozen=True, array_like=True):
    """A member of a server group: a consumer, the host on which it lives, and the attempt by which it came there."""

    group: GroupId
    consumer: ConsumerId
    attempt: Integer
    host: ProviderId


class Share(Value, frozen=True, array_like=True):
    """The resources that a consumer holds or claims: on which host, how much, and from trees of which shapes.

    `host` is the root provider of the tree the consumer lives on. Amounts may come from any provider of that tree and
    from sharing providers outside it. `shapes` names all trees that it takes from, or is empty: then shapes are not
    checked. A claim or a swap is refused if the host already has `instances_max` consumers; 0 means no limit.
    """

    host: ProviderId
    amounts: Annotated[tuple[ResourceAmount, ...], Meta(min_length=1, max_length=1000)]
    shapes: Annotated[tuple[ShapeSeen, ...], Meta(max_length=1000)] = ()
    instances_max: Natural = 0


class Holder(Value, frozen=True, array_like=True):
    """A consumer and an attempt of it: its claim was granted or ended, or its membership in a server group ended.

    After a claim was granted or ended, a scheduler's picture drops what it had chosen for this attempt.
    """

    consumer: ConsumerId
    attempt: Integer


# The field named by NotAllowed if a provider of the share is in another cell: a bare-metal node may change its cell
# between the choice and the claim.
SHARE_CELL = "share.cell"

# A host may be there by several ways to take its share.
ALTERNATES_MAX = 20


class Choice(Value, frozen=True, array_like=True):
    """A suitable host and the share to take from it. Only on the chosen host is the share claimed; on alternates nothing is.

    `fingerprint` identifies the host's tree as it was when the host was chosen (`tree_fingerprint`); it is empty if
    unknown. When the shape has moved, an equal fingerprint shows that only inventories changed. `kind` is the kind of
    the host (hosts.py).
    """

    name: Label
    share: Share
    fingerprint: Label = ""
    kind: Label = ""


def capacity_of(inventory: InventoryState) -> int:
    # Over-commit multiplies what is left after the reserve, never the reserve itself.
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)


CUSTOM = "CUSTOM_"


class Vocabulary(Struct, frozen=True):
    """The standard names of resource classes and traits. Names with the prefix CUSTOM_ are allowed beside them."""

    classes: frozenset[str]
    traits: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        return self.classes | self.traits

    def knows_class(self, name: str) -> bool:
        return name in self.classes or _is_custom(name)

    def knows_trait(self, name: str) -> bool:
        return name in self.traits or _is_custom(name)


@cache
def standard_vocabulary() -> Vocabulary:
    """The names that os-resource-classes and os-traits have."""
    # To load them takes longer than most commands.
    import os_resource_classes  # noqa: PLC0415
    import os_traits  # noqa: PLC0415

    return Vocabulary(frozenset(os_resource_classes.STANDARDS), frozenset(os_traits.get_traits()))


NEAR_MAX = 3
# A comparison takes 30 us. Of more names than these, the neighbours are compared: by their beginnings and by their ends.
COMPARED_MAX = 120


class SortedNames:
    """Names, in the orders in which those near another one are found. To make it takes 50 ms for 20,000 names."""

    def __init__(self, known: Iterable[str]) -> None:
        self._by_own: dict[str, list[str]] = {}
        for each in sorted({*known} - {""}):
            self._by_own.setdefault(_own_of(each), []).append(each)
        self._ahead = sorted(self._by_own)
        self._back = sorted([each[::-1] for each in self._by_own])

    def near(self, name: str) -> tuple[str, ...]:
        """The known names that are like this one, in whatever letter case. That two names are custom does not make them alike."""
        own = _own_of(name)
        some = self._by_own.keys() if len(self._by_own) <= COMPARED_MAX else self._neighbours(own)
        found = get_close_matches(own, sorted(some), n=NEAR_MAX + 1)
        return tuple([each for group in found for each in self._by_own[group] if each != name][:NEAR_MAX])

    def _neighbours(self, own: str) -> set[str]:
        some = COMPARED_MAX // 4
        at, back_at = bisect_left(self._ahead, own), bisect_left(self._back, own[::-1])
        return {
            *self._ahead[max(0, at - some) : at + some],
            *[each[::-1] for each in self._back[max(0, back_at - some) : back_at + some]],
        }


def _own_of(name: str) -> str:
    return name.upper().removeprefix(CUSTOM)


def near(name: str, known: Iterable[str]) -> tuple[str, ...]:
    return SortedNames(known).near(name)


def near_in_words(names: Sequence[str]) -> str:
    """The end of an error about an unknown name: `; near it: VCPU, PCPU`. Empty without names."""
    return f"; near it: {', '.join(names)}" if names else ""


def unknown_names(
    names: Iterable[str], standard: AbstractSet[str], custom: AbstractSet[str]
) -> tuple[str, ...]:
    """The names that are neither standard nor among these custom names, sorted and each once."""
    return tuple(sorted(set(names) - standard - custom))


def _is_custom(name: str) -> bool:
    return name.startswith(CUSTOM) and len(name) > len(CUSTOM)
