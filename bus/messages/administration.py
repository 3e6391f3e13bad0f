"""Whatever is written into placement's books by name, and asked of them: providers, inventories, traits, aggregates, the
names of classes and traits, allocations.

These are the words of Placement's API: whoever speaks HTTP to it is translated into them. A client or an operator sends
them over the bus as well; a cell does not, it reports, claims and releases in the words of messages/placement.py.

A write is judged by the generation that it names, where it names one; None is judged by none. Every write ends in a
verdict: one of those that say that it is done, or one that says why nothing of it was.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from bus.message import AggregateId, ConsumerId, Message, Project, ProviderId
from bus.messages.placement import (
    Counter,
    DoesNotFit,
    InventoryInUse,
    Label,
    NotAllowed,
    ProviderName,
    ReportedInventory,
    ResourceAmount,
    ResourceClass,
    Trait,
    Value,
    Variant,
)

CustomName = Annotated[str, Meta(pattern=r"^CUSTOM_[A-Z0-9_]+\Z", max_length=255)]
Inventories = Annotated[dict[ResourceClass, ReportedInventory], Meta(max_length=200)]
Traits = Annotated[tuple[Trait, ...], Meta(max_length=400)]
Aggregates = Annotated[tuple[AggregateId, ...], Meta(max_length=400)]
# What an HTTP client calls its consumers; empty if nobody ever said.
TypeName = Annotated[str, Meta(pattern=r"^[A-Z0-9_]*\Z", max_length=255)]
KindOfNames = Literal["classes", "traits"]
CellOrNone = Annotated[str, Meta(pattern=r"^([a-z0-9][a-z0-9_-]{0,39})?\Z")]


class CreateProvider(Message, frozen=True, tag="provider.create"):
    """A new provider, empty: a root of its own, or a child of `parent`, whose cell it then belongs to."""

    IS_STRICT: ClassVar[bool] = True

    id: ProviderId
    name: ProviderName
    parent: ProviderId | None = None
    of_cell: CellOrNone = ""


class UpdateProvider(Message, frozen=True, tag="provider.update"):
    """The provider's name, and with `parent` its place: below that one, or with null at the root of its own tree. Where
    `parent` is not named it stays where it is.

    Without `reparents` only a root may be given a place, as Placement's API had it before 1.37.
    """

    IS_STRICT: ClassVar[bool] = True

    id: ProviderId
    name: ProviderName
    parent: ProviderId | UnsetType | None = UNSET
    reparents: bool = True


class DeleteProvider(Message, frozen=True, tag="provider.delete"):
    """Refused as long as it has children, or something of it is held."""

    IS_STRICT: ClassVar[bool] = True

    id: ProviderId


class SetInventories(Message, frozen=True, tag="inventory.set"):
    """These inventories and no others. What is held cannot be taken away; there may be less of it than is held."""

    IS_STRICT: ClassVar[bool] = True

    provider: ProviderId
    generation: Counter | None
    inventories: Inventories


class PutInventory(Message, frozen=True, tag="inventory.put"):
    """One inventory beside the others: with `is_new` there must be none of this class yet, without it there must."""

    IS_STRICT: ClassVar[bool] = True

    provider: ProviderId
    generation: Counter | None
    resource: ResourceClass
    inventory: ReportedInventory
    is_new: bool = False


class DropInventory(Message, frozen=True, tag="inventory.drop"):
    """One inventory less; refused while something of it is held."""

    IS_STRICT: ClassVar[bool] = True

    provider: ProviderId
    resource: ResourceClass


class SetTraits(Message, frozen=True, tag="traits.set"):
    """These traits and no others. Those that its reporter does not know stay when it reports."""

    IS_STRICT: ClassVar[bool] = True

    provider: ProviderId
    generation: Counter | None
    traits: Traits


class SetAggregates(Message, frozen=True, tag="aggregates.set"):
    """A member of these aggregates and no others.

    Before 1.19 Placement's API neither asked for a generation nor moved it: that is `moves_generation` left out.
    """

    IS_STRICT: ClassVar[bool] = True

    provider: ProviderId
    generation: Counter | None
    aggregates: Aggregates
    moves_generation: bool = True


class CreateTrait(Message, frozen=True, tag="trait.create"):
    IS_STRICT: ClassVar[bool] = True

    name: CustomName


class DeleteTrait(Message, frozen=True, tag="trait.delete"):
    """Refused while a provider has it; standard ones are not for deletion."""

    IS_STRICT: ClassVar[bool] = True

    name: Trait


class CreateClass(Message, frozen=True, tag="class.create"):
    IS_STRICT: ClassVar[bool] = True

    name: CustomName


class RenameClass(Message, frozen=True, tag="class.rename"):
    """Refused while a provider has an inventory of it; standard ones keep their names."""

    IS_STRICT: ClassVar[bool] = True

    name: ResourceClass
    to: CustomName


class DeleteClass(Message, frozen=True, tag="class.delete"):
    """Refused while a provider has an inventory of it; standard ones are not for deletion."""

    IS_STRICT: ClassVar[bool] = True

    name: ResourceClass


class ConsumerAllocations(Value, frozen=True):
    """All that one consumer is to hold from now on; with nothing, it is no more.

    `generation` is the consumer's as it was last seen, null if there was none; before 1.28 Placement's API did not ask:
    that is `judges_generation` set to false. Without `type` it stays what it is, unknown if nobody ever said.
    """

    consumer: ConsumerId
    amounts: Annotated[tuple[ResourceAmount, ...], Meta(max_length=1000)]
    project: Label
    user: Label
    generation: Counter | None
    type: TypeName | None = None
    judges_generation: bool = True


class SetAllocations(Message, frozen=True, tag="allocations.set"):
    """What these consumers are to hold: all of it, or nothing is changed."""

    IS_STRICT: ClassVar[bool] = True

    consumers: Annotated[tuple[ConsumerAllocations, ...], Meta(min_length=1, max_length=1000)]


class DeleteAllocations(Message, frozen=True, tag="allocations.delete"):
    """Free whatever this consumer holds, whatever its generation."""

    IS_STRICT: ClassVar[bool] = True

    consumer: ConsumerId


class ProviderInventories(Value, frozen=True):
    provider: ProviderId
    generation: Counter
    inventories: Inventories


class Reshape(Message, frozen=True, tag="reshape"):
    """Inventories of several providers, and what consumers hold of them, all at once: so what is held can move with the
    inventory it is held of.
    """

    IS_STRICT: ClassVar[bool] = True

    inventories: Annotated[tuple[ProviderInventories, ...], Meta(max_length=1000)]
    allocations: Annotated[tuple[ConsumerAllocations, ...], Meta(max_length=1000)] = ()


class Done(Variant, frozen=True, tag="done"):
    """Written, and there is nothing to say about it."""


class ProviderWritten(Variant, frozen=True, tag="written"):
    """Where the provider stands after this write, and its generation."""

    provider: ProviderId
    name: str
    generation: int
    root: ProviderId
    parent: ProviderId | None = None


class AlreadyThere(Variant, frozen=True, tag="already_there"):
    """A class or trait of this name exists."""

    name: str


class UnknownProvider(Variant, frozen=True, tag="unknown_provider"):
    """There is none. `field` is where the write names it: id, provider, parent, inventories or allocations."""

    provider: ProviderId
    field: str


class UnknownClass(Variant, frozen=True, tag="unknown_class"):
    """There are no resource classes of these names."""

    names: tuple[str, ...]


class UnknownTrait(Variant, frozen=True, tag="unknown_trait"):
    """There are no traits of these names."""

    names: tuple[str, ...]


class UnknownConsumer(Variant, frozen=True, tag="unknown_consumer"):
    """It holds nothing."""

    consumer: ConsumerId


class GenerationMoved(Variant, frozen=True, tag="generation_moved"):
    """The provider has been written since: `current` is its generation."""

    provider: ProviderId
    seen: int
    current: int


class ConsumerMoved(Variant, frozen=True, tag="consumer_moved"):
    """The consumer has been written since: `current` is its generation, null if there is no such consumer."""

    consumer: ConsumerId
    seen: int | None
    current: int | None


class NameTaken(Variant, frozen=True, tag="name_taken"):
    """Another provider bears it."""

    name: str
    provider: ProviderId


class IdTaken(Variant, frozen=True, tag="id_taken"):
    """There is a provider of this id."""

    provider: ProviderId


class HasChildren(Variant, frozen=True, tag="has_children"):
    """`child` is one of them."""

    provider: ProviderId
    child: ProviderId


class InventoryPresent(Variant, frozen=True, tag="inventory_present"):
    provider: ProviderId
    resource: str


class InventoryAbsent(Variant, frozen=True, tag="inventory_absent"):
    provider: ProviderId
    resource: str


class NameInUse(Variant, frozen=True, tag="name_in_use"):
    """Of the providers that have this trait, or an inventory of this class, `provider` is one."""

    name: str
    provider: ProviderId


ProviderWrite = (
    CreateProvider
    | UpdateProvider
    | DeleteProvider
    | SetInventories
    | PutInventory
    | DropInventory
    | SetTraits
    | SetAggregates
)
AllocationWrite = SetAllocations | DeleteAllocations
NameWrite = CreateTrait | DeleteTrait | CreateClass | RenameClass | DeleteClass
Write = ProviderWrite | NameWrite | AllocationWrite | Reshape

WriteVerdict = (
    Done
    | ProviderWritten
    | AlreadyThere
    | UnknownProvider
    | UnknownClass
    | UnknownTrait
    | UnknownConsumer
    | GenerationMoved
    | ConsumerMoved
    | NameTaken
    | IdTaken
    | HasChildren
    | InventoryPresent
    | InventoryAbsent
    | InventoryInUse
    | NameInUse
    | DoesNotFit
    | NotAllowed
)


class WriteAnswered(Message, frozen=True, tag="write.answered"):
    """What became of a write."""

    verdict: WriteVerdict


class ConsumerState(Value, frozen=True):
    """A consumer that holds something. `attempt` is 0 of who was made by allocations and not by a claim."""

    id: ConsumerId
    project: str
    user: str
    type: str
    generation: int
    attempt: int
    held: tuple[ResourceAmount, ...]


class TypeUsage(Value, frozen=True):
    """What all consumers of one type hold, and how many they are; the type is empty of those of whom nobody said it."""

    type: str
    consumers: int
    used: dict[str, int]


class AskConsumer(Message, frozen=True, tag="consumer.query"):
    IS_STRICT: ClassVar[bool] = True

    consumer: ConsumerId


class ConsumerFound(Message, frozen=True, tag="consumer.found"):
    """None if it holds nothing."""

    consumer: ConsumerState | None


class AskHolders(Message, frozen=True, tag="holders.query"):
    """Who holds something of this provider? By consumer id, those after `after`."""

    IS_STRICT: ClassVar[bool] = True

    provider: ProviderId
    after: ConsumerId | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class HoldersFound(Message, frozen=True, tag="holders.found"):
    """Consumers with all that they hold, of other providers too; `next` is where the next page starts, null on the
    last one.
    """

    holders: tuple[ConsumerState, ...]
    next: ConsumerId | None = None


class AskUsages(Message, frozen=True, tag="usages.query"):
    """What do the consumers of this project hold, or those of one of its users?"""

    IS_STRICT: ClassVar[bool] = True

    project: Annotated[Project, Meta(min_length=1)]
    user: Label = ""


class UsagesFound(Message, frozen=True, tag="usages.found"):
    usages: tuple[TypeUsage, ...]


class AskNames(Message, frozen=True, tag="names.query"):
    """Custom resource classes, or custom traits: those after `after`."""

    IS_STRICT: ClassVar[bool] = True

    of: KindOfNames
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class NamesFound(Message, frozen=True, tag="names.found"):
    """In their order; `next` is where the next page starts, empty on the last one."""

    names: tuple[str, ...]
    next: str = ""
