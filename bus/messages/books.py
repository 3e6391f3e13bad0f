"""Writes to placement's books by name, and questions about them: providers, inventories, traits, aggregates, custom
classes and traits, allocations, quotas.

These messages follow Placement's HTTP API, and its HTTP server translates requests into them. Clients and operators may
also send them over the bus. Cells may not: they report, claim and release with the messages of messages/placement.py.

A write that names a generation is checked against it; None skips the check. Every write is answered by a verdict: done,
or the reason why nothing was changed.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from bus.message import AnswerMessage, Kind, ProjectMessage, Route, Scope, StrictMessage
from bus.messages.placement import InventoryInUse
from engine.inventories import (
    AggregateId,
    ConsumerId,
    Counter,
    Integer,
    Label,
    Positive,
    Project,
    ProviderId,
    ProviderName,
    QuotaState,
    ReportedInventory,
    ResourceAmount,
    ResourceClass,
    Share,
    Trait,
    Value,
    Variant,
)
from engine.places import Place
from engine.refusals import DoesNotFit, NotAllowed, TooCostly

# Quotas: how much a project may have of each resource class, and how many instances.


LimitName = Annotated[str, Meta(pattern=r"^(instances|[A-Z0-9_]+)\Z", max_length=255)]
ProjectName = Annotated[Project, Meta(min_length=1)]


class BookWrite(StrictMessage, frozen=True):
    """A write by name to placement's books. Cells may send none: they report, claim and release."""

    ROUTE = Route(Kind.ORDER, "placement.work", answer="write.answered", by=("operator",))


class SetQuota(BookWrite, frozen=True, tag="quota.set"):
    """Set limits of a project. Each limit that is not named stays as it is; one with null is removed.

    A limit may be lower than what the project uses. Then nothing is taken from the project, and it gets nothing more of this
    class. A repeated order changes nothing.
    """

    project: ProjectName
    limits: Annotated[dict[LimitName, Counter | None], Meta(min_length=1, max_length=200)]


class AskQuotas(ProjectMessage, frozen=True, tag="quota.query"):
    """Asks for the quota of a project; or, without `project`, for a page of all, in the order of projects, after `after`."""

    ROUTE = Route(Kind.QUESTION, "placement.questions", answer="quota.found", by=("scheduler", "application"))

    project: Annotated[Project, Meta(description="the project's name")] = ""
    after: Project = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class QuotasFound(AnswerMessage, frozen=True, tag="quota.found"):
    """The quotas that were asked for. A project without limits has none. `next` is where the next page begins, empty on the
    last page.
    """

    quotas: tuple[QuotaState, ...]
    next: str = ""


CustomName = Annotated[str, Meta(pattern=r"^CUSTOM_[A-Z0-9_]+\Z", max_length=255)]
Inventories = Annotated[dict[ResourceClass, ReportedInventory], Meta(max_length=200)]
Traits = Annotated[tuple[Trait, ...], Meta(max_length=400)]
Aggregates = Annotated[tuple[AggregateId, ...], Meta(max_length=400)]
# The consumer type given by an HTTP client; empty if none was ever given.
TypeName = Annotated[str, Meta(pattern=r"^[A-Z0-9_]*\Z", max_length=255)]
KindOfNames = Literal["classes", "traits"]
CellOrNone = Annotated[str, Meta(pattern=r"^([a-z0-9][a-z0-9_-]{0,39})?\Z")]


class CreateProvider(BookWrite, frozen=True, tag="provider.create"):
    """Creates an empty provider: a root, or a child of `parent`, which decides its cell."""

    id: ProviderId
    name: ProviderName
    parent: ProviderId | None = None
    of_cell: CellOrNone = ""


class UpdateProvider(BookWrite, frozen=True, tag="provider.update"):
    """Sets the provider's name, and with `parent` its place in the tree: below that provider, or with null as the root
    of a tree of its own. Without `parent` it stays in place.

    Without `reparents` only a root may get a parent, as in Placement's API before 1.37.
    """

    id: ProviderId
    name: ProviderName
    parent: ProviderId | UnsetType | None = UNSET
    reparents: bool = True


class DeleteProvider(BookWrite, frozen=True, tag="provider.delete"):
    """Deletes a provider. Refused while it has children or a consumer holds resources of it."""

    # A scheduler deletes those of a host that is gone.
    ROUTE = Route(Kind.ORDER, "placement.work", answer="write.answered", by=("scheduler", "operator"))

    id: ProviderId


class ProviderChange(BookWrite, frozen=True):
    """A change of one provider, refused if the provider's generation is another one.

    With a null `generation` it is made in any case.
    """

    provider: ProviderId
    generation: Counter | None


class SetInventories(ProviderChange, frozen=True, tag="inventory.set"):
    """Replaces all inventories of the provider. An inventory in use cannot be removed; its total may become less than
    what is in use. The next report of the provider by its host or daemon replaces them.
    """

    inventories: Inventories


class PutInventory(ProviderChange, frozen=True, tag="inventory.put"):
    """Sets the inventory of one class and leaves the others.

    With `is_new` the provider must have no inventory of this class yet. Without it, the provider must have one.
    """

    resource: ResourceClass
    inventory: ReportedInventory
    is_new: bool = False


class DropInventory(BookWrite, frozen=True, tag="inventory.drop"):
    """Removes the inventory of one class. Refused while it is in use."""

    provider: ProviderId
    resource: ResourceClass


class SetTraits(ProviderChange, frozen=True, tag="traits.set"):
    """Replaces all traits of the provider.

    If the provider is reported by a compute or a daemon, later reports keep the traits that the reporter does not know.
    """

    traits: Traits


class SetAggregates(ProviderChange, frozen=True, tag="aggregates.set"):
    """Makes the provider a member of exactly these aggregates.

    Placement's API before 1.19 neither asked for a generation nor changed it: `moves_generation` is false then.
    """

    ROUTE = Route(Kind.ORDER, "placement.work", answer="write.answered", by=("scheduler", "operator"))

    aggregates: Aggregates
    moves_generation: bool = True


class ProviderPlace(Value, frozen=True):
    """Where an operator has said that a root provider is; empty: where its reporter says."""

    provider: ProviderId
    place: Place


class SetPlaces(BookWrite, frozen=True, tag="places.set"):
    """Sets where these root providers are: all of them, or none. Reports do not change it."""

    ROUTE = Route(Kind.ORDER, "placement.work", answer="write.answered", by=("scheduler", "operator"))

    places: Annotated[tuple[ProviderPlace, ...], Meta(min_length=1, max_length=500)]


class CreateTrait(BookWrite, frozen=True, tag="trait.create"):
    name: CustomName


class DeleteTrait(BookWrite, frozen=True, tag="trait.delete"):
    """Deletes a custom trait. Refused while a provider has it. Standard traits cannot be deleted."""

    name: Trait


class CreateClass(BookWrite, frozen=True, tag="class.create"):
    name: CustomName


class RenameClass(BookWrite, frozen=True, tag="class.rename"):
    """Renames a custom resource class. Refused while a provider has an inventory of it. Standard classes cannot be renamed."""

    name: ResourceClass
    to: CustomName


class DeleteClass(BookWrite, frozen=True, tag="class.delete"):
    """Deletes a custom resource class. Refused while a provider has an inventory of it. Standard classes cannot be deleted."""

    name: ResourceClass


class ConsumerAllocations(Value, frozen=True):
    """Everything that one consumer holds after this write. Without amounts the consumer is deleted.

    `generation` is the generation of the consumer that the sender knows, null if there was no such consumer.
    Placement's API before 1.28 did not ask for a generation: `judges_generation` is false then. Without `type`, the
    consumer's type stays as it is.
    """

    consumer: ConsumerId
    amounts: Annotated[tuple[ResourceAmount, ...], Meta(max_length=1000)]
    project: Label
    user: Label
    generation: Counter | None
    type: TypeName | None = None
    judges_generation: bool = True


class SetAllocations(BookWrite, frozen=True, tag="allocations.set"):
    """Sets what these consumers hold. If that is impossible for one of them, nothing is changed."""

    consumers: Annotated[tuple[ConsumerAllocations, ...], Meta(min_length=1, max_length=1000)]


class DeleteAllocations(BookWrite, frozen=True, tag="allocations.delete"):
    """Frees everything that this consumer holds, whatever its generation."""

    consumer: ConsumerId


class ProviderInventories(Value, frozen=True):
    provider: ProviderId
    generation: Counter
    inventories: Inventories


class Reshape(BookWrite, frozen=True, tag="reshape"):
    """Changes inventories of several providers and the allocations on them in one step.

    So allocations can move to another provider together with the inventory that they use.
    """

    inventories: Annotated[tuple[ProviderInventories, ...], Meta(max_length=1000)]
    allocations: Annotated[tuple[ConsumerAllocations, ...], Meta(max_length=1000)] = ()


class Done(Variant, frozen=True, tag="done"):
    """The write is done; there are no details."""


class ProviderWritten(Variant, frozen=True, tag="written"):
    """The provider after this write: its place in the tree and its generation."""

    provider: ProviderId
    name: str
    generation: Integer
    root: ProviderId
    parent: ProviderId | None = None


class AlreadyThere(Variant, frozen=True, tag="already_there"):
    """A class or trait of this name exists already."""

    name: str


class UnknownProvider(Variant, frozen=True, tag="unknown_provider"):
    """There is no such provider.

    `field` is the field of the write that names it: id, provider, parent, inventories or allocations.
    """

    provider: ProviderId
    field: str


class UnknownClass(Variant, frozen=True, tag="unknown_class"):
    """No resource classes of these names exist."""

    names: tuple[str, ...]


class UnknownTrait(Variant, frozen=True, tag="unknown_trait"):
    """No traits of these names exist."""

    names: tuple[str, ...]


class UnknownConsumer(Variant, frozen=True, tag="unknown_consumer"):
    """The consumer holds nothing."""

    consumer: ConsumerId


class GenerationMoved(Variant, frozen=True, tag="generation_moved"):
    """The write names an old generation of the provider. `current` is its generation now."""

    provider: ProviderId
    seen: Integer
    current: Integer


class ConsumerMoved(Variant, frozen=True, tag="consumer_moved"):
    """The write names an old generation of the consumer. `current` is its generation now, null if it does not exist."""

    consumer: ConsumerId
    seen: Integer | None
    current: Integer | None


class NameTaken(Variant, frozen=True, tag="name_taken"):
    """Another provider has this name."""

    name: str
    provider: ProviderId


class IdTaken(Variant, frozen=True, tag="id_taken"):
    """A provider with this id exists already."""

    provider: ProviderId


class HasChildren(Variant, frozen=True, tag="has_children"):
    """A refusal to delete a provider: it has children, and `child` is one of them."""

    provider: ProviderId
    child: ProviderId


class InventoryPresent(Variant, frozen=True, tag="inventory_present"):
    """The provider has an inventory of this class already."""

    provider: ProviderId
    resource: str


class InventoryAbsent(Variant, frozen=True, tag="inventory_absent"):
    """The provider has no inventory of this class."""

    provider: ProviderId
    resource: str


class NameInUse(Variant, frozen=True, tag="name_in_use"):
    """Refuses to delete a custom trait or class that is in use. `provider` is one of the providers that have it."""

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
    | SetPlaces
)
AllocationWrite = SetAllocations | DeleteAllocations
NameWrite = CreateTrait | DeleteTrait | CreateClass | RenameClass | DeleteClass
Write = ProviderWrite | NameWrite | AllocationWrite | Reshape | SetQuota

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


class WriteAnswered(AnswerMessage, frozen=True, tag="write.answered"):
    """The verdict on a write."""

    verdict: WriteVerdict


class ConsumerState(Value, frozen=True):
    """A consumer that holds resources. `attempt` is 0 for a consumer that was created by allocations and not by a
    claim.
    """

    id: ConsumerId
    project: str
    user: str
    type: str
    generation: Integer
    attempt: Integer
    held: tuple[ResourceAmount, ...]


class TypeUsage(Value, frozen=True):
    """What all consumers of one type hold, and how many they are. `type` is empty for consumers whose type was never
    given.
    """

    type: str
    consumers: Integer
    used: dict[str, Integer]


class AskConsumer(StrictMessage, frozen=True, tag="consumer.query"):
    ROUTE = Route(Kind.QUESTION, "placement.questions", answer="consumer.found", by=("scheduler", "admin"))

    consumer: ConsumerId


class ConsumerFound(AnswerMessage, frozen=True, tag="consumer.found"):
    """The consumer that was asked for, with what it holds. `consumer` is null if it holds nothing."""

    consumer: ConsumerState | None


class AskHolders(StrictMessage, frozen=True, tag="holders.query"):
    """Asks for a page of the consumers that hold resources of this provider: in the order of their ids, after `after`."""

    ROUTE = Route(Kind.QUESTION, "placement.questions", answer="holders.found", by=("admin",))

    provider: ProviderId
    after: ConsumerId | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class HoldersFound(AnswerMessage, frozen=True, tag="holders.found"):
    """A page of the consumers that hold resources of a provider, with everything else that they hold.

    `next` is where the next page begins, null on the last page.
    """

    holders: tuple[ConsumerState, ...]
    next: ConsumerId | None = None


class AskUsages(StrictMessage, frozen=True, tag="usages.query"):
    """Asks how much the consumers of a project hold in total. With `user`, only the consumers of that user count."""

    ROUTE = Route(Kind.QUESTION, "placement.questions", answer="usages.found", by=("application",))
    SCOPE = Scope.PROJECT

    project: Annotated[Project, Meta(min_length=1, description="the project's id")]
    user: Annotated[Label, Meta(description="only what this user's consumers hold")] = ""


class UsagesFound(AnswerMessage, frozen=True, tag="usages.found"):
    usages: tuple[TypeUsage, ...]


class AskNames(StrictMessage, frozen=True, tag="names.query"):
    """Asks for a page of custom resource classes or custom traits: in the order of their names, after `after`."""

    ROUTE = Route(Kind.QUESTION, "placement.questions", answer="names.found", by=("admin",))

    of: KindOfNames
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class NamesFound(AnswerMessage, frozen=True, tag="names.found"):
    """A page of the names of custom classes or traits. `next` is where the next page begins, empty on the last page."""

    names: tuple[str, ...]
    next: str = ""


# Asks placement which providers could satisfy a request, for programs without a picture of their own.
#
# A claim can be built from an answer. The answer reserves nothing: only the claim decides.


CANDIDATES_MAX = 1_000

Suffix = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{0,64}\Z")]
AnyOfTraits = Annotated[tuple[Annotated[Traits, Meta(min_length=1)], ...], Meta(max_length=400)]
AnyOfAggregates = Annotated[tuple[Annotated[Aggregates, Meta(min_length=1)], ...], Meta(max_length=400)]
Weight = Annotated[float, Meta(ge=-1e9, le=1e9)]


class RequestGroup(Value, frozen=True):
    """One group of a request. Each inner list of `required` and `member_of` needs only one of its elements.

    The group without a suffix may take each class from another provider of one tree, or from a provider that shares
    with that tree. A group with a suffix takes everything from one provider. `preferred` gives weights to optional
    traits: candidates with a higher sum come first.
    """

    suffix: Suffix = ""
    resources: Annotated[dict[ResourceClass, Positive], Meta(max_length=200)] = {}
    required: AnyOfTraits = ()
    forbidden: Traits = ()
    preferred: Annotated[dict[Trait, Weight], Meta(max_length=400)] = {}
    member_of: AnyOfAggregates = ()
    forbidden_aggregates: Aggregates = ()
    in_tree: ProviderId | None = None


class AskCandidates(StrictMessage, frozen=True, tag="candidates"):
    """Asks which providers could satisfy all groups together. At most `limit` candidates are found. If they do not fit
    into one message, the answer is `TooCostly`.

    With `isolate`, no two groups with suffixes use the same provider. Each list in `same_subtree` names groups by their
    suffixes: one of the providers for these groups must be an ancestor of all the others. `root_required` and
    `root_forbidden` are traits that the root of the tree must have, or must not have.
    """

    ROUTE = Route(Kind.QUESTION, "placement.searches", answer="candidates.found", by=("admin",))

    groups: Annotated[tuple[RequestGroup, ...], Meta(min_length=1, max_length=64)]
    group_policy: Literal["none", "isolate"] | None = None
    same_subtree: Annotated[
        tuple[Annotated[tuple[Suffix, ...], Meta(max_length=64)], ...], Meta(max_length=64)
    ] = ()
    root_required: Traits = ()
    root_forbidden: Traits = ()
    limit: Annotated[int, Meta(ge=1, le=CANDIDATES_MAX)] = 100


class Candidate(Value, frozen=True):
    """One way to satisfy the request.

    `share` can be claimed as it is: it has the current shapes. `mappings` has the providers that each group uses.
    `preference` is the sum of the weights of the preferred traits that are met.
    """

    share: Share
    mappings: dict[str, tuple[ProviderId, ...]]
    preference: float = 0.0


class Candidates(Variant, frozen=True, tag="candidates"):
    """The candidates that were found: all of them, or as many as the question's limit."""

    candidates: tuple[Candidate, ...]


class CandidatesFound(AnswerMessage, frozen=True, tag="candidates.found"):
    verdict: Candidates | UnknownClass | UnknownTrait | NotAllowed | TooCostly
