"""What anyone may say to placement, and what placement says: claims, reports, snapshots, changes.

The values that the messages are made of (amounts, inventories, verdicts) are placement's vocabulary, and so the
vocabulary of everyone who talks to it.
"""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from bus.message import AggregateId, CellName, ConsumerId, GroupId, Message, ProviderId

# PostgreSQL's integer, which is also the bound of Placement's API.
INTEGER_MAX = 2_147_483_647

Natural = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Positive = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Counter = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Moment = Annotated[datetime, Meta(tz=True)]
Attempt = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Ratio = Annotated[float, Meta(gt=0, le=1e6)]
ResourceClass = Annotated[str, Meta(pattern=r"^[A-Z0-9_]+\Z", max_length=255)]
Trait = Annotated[str, Meta(pattern=r"^[A-Z0-9_]+\Z", max_length=255)]
ProviderName = Annotated[str, Meta(min_length=1, max_length=200)]
# How far the books had come, in the words of whatever keeps them: to be handed back, not to be read.
Cursor = Annotated[str, Meta(pattern=r"^[0-9:,]*\Z")]
# A name to be looked up: on the hot path a wrong one is not found, which needs no pattern.
Label = Annotated[str, Meta(max_length=255)]
# An open vocabulary, spelled as the HTTP API takes it: INSTANCE and MIGRATION as Nova says them, CLEANUP, or another.
ConsumerType = Annotated[str, Meta(pattern=r"^[A-Z0-9_]+\Z", max_length=255)]
# The project and the user of a consumer whose request named none. Placement's HTTP API has the same for consumers that
# were made before it asked for them; it takes no empty ones.
NO_OWNER = "00000000-0000-0000-0000-000000000000"


class Value(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of a message."""


class Variant(Value, frozen=True, kw_only=True, omit_defaults=True, tag_field="is"):
    """One of several things a part of a message may be, told apart by its tag."""


# What messages are full of, here and in cell.py, is on the wire as an array of its fields: ["...", "VCPU", 4]. A later
# release may add fields at the end.
class ResourceAmount(Value, frozen=True, array_like=True):
    """So much of one class from one provider."""

    provider: ProviderId
    resource: Label
    amount: Positive


class ShapeSeen(Value, frozen=True, array_like=True):
    """The shape of one tree, as the asker saw it when it chose."""

    root: ProviderId
    shape: Counter


class ServerGroup(Value, frozen=True):
    """The group whose members the consumer must keep apart from, or together with."""

    id: GroupId
    policy: Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]
    max_per_host: Positive = 1


class Share(Value, frozen=True, array_like=True):
    """What a consumer is to hold: where, of which shapes, how much.

    `host` is the root provider of the tree the consumer lives on; amounts may come from any provider of that tree
    and from sharing providers outside it. `shapes` names all trees that it takes from, or none: without any, they are not
    looked at. A claim or a swap is refused if the host has `instances_max` consumers
    already; 0: any number.
    """

    host: ProviderId
    amounts: Annotated[tuple[ResourceAmount, ...], Meta(min_length=1, max_length=1000)]
    shapes: Annotated[tuple[ShapeSeen, ...], Meta(max_length=1000)] = ()
    instances_max: Natural = 0


class ClaimResources(Message, frozen=True, tag="claim"):
    """May this consumer have this share? Asked again with the same attempt, the answer is what it really holds.

    `issued_at` is when the attempt was first made: it stays the same however often the question is repeated. Without
    `project` or `user` the consumer has `00000000-0000-0000-0000-000000000000` as its own.
    """

    cell: Label
    consumer: ConsumerId
    attempt: Attempt
    issued_at: Moment
    share: Share
    consumer_type: ConsumerType = "INSTANCE"
    project: Label = ""
    user: Label = ""
    group: ServerGroup | None = None


class SwapClaim(Message, frozen=True, tag="swap"):
    """Move what the consumer holds at one attempt to another share, as a later attempt: all, or nothing.

    With `cleanup`, what was held is not freed but handed to that consumer, which holds it until the host that
    went silent has confirmed that nothing of the attempt is left on it. That consumer is a CLEANUP, of the same project and
    user.
    """

    cell: Label
    consumer: ConsumerId
    held_attempt: Attempt
    attempt: Attempt
    issued_at: Moment
    share: Share
    cleanup: ConsumerId | None = None
    group: ServerGroup | None = None


class ReleaseClaim(Message, frozen=True, tag="release"):
    """The consumer's life ends with this attempt: free what it holds, and refuse what was sent before."""

    cell: Label
    consumer: ConsumerId
    attempt: Attempt
    issued_at: Moment


class Shortfall(Value, frozen=True):
    """Why an amount was not to be had from a provider, in numbers.

    `rule` says what was broken: capacity, or one of the inventory's own bounds, whose value is `bound`.
    """

    provider: ProviderId
    resource: ResourceClass
    asked: int
    free: int
    rule: Literal["capacity", "min_unit", "max_unit", "step_size", "no_inventory"] = "capacity"
    bound: int = 0


class InventoryState(Value, frozen=True):
    """One class of one provider: what there is, what may be asked, what is in use."""

    total: Natural
    reserved: Natural = 0
    min_unit: Positive = 1
    max_unit: Positive = INTEGER_MAX
    step_size: Positive = 1
    allocation_ratio: Ratio = 1.0
    used: Counter = 0


class ProviderState(Value, frozen=True):
    """One provider, whole. `internal` is never reused; `revision` orders what is known about it.

    `shape` is that of its tree, kept on the root and repeated on each of the tree's providers. `consumers` is how many
    live on it: they hold something, and their claims named it as their host.
    """

    internal: int
    id: ProviderId
    name: ProviderName
    root: ProviderId
    parent: ProviderId | None = None
    cell: str = ""
    generation: int = 0
    shape: int = 0
    revision: int = 0
    inventories: dict[str, InventoryState] = {}
    traits: tuple[str, ...] = ()
    aggregates: tuple[AggregateId, ...] = ()
    consumers: int = 0


class ProviderUsage(Value, frozen=True):
    """What claims change of a provider, and nothing else: it stands at `revision`, so many consumers live on it, and of
    each of its classes so much is used. All else of it is as it was told with revision `base`: who has not heard that has missed something.
    """

    internal: int
    id: ProviderId
    base: int
    revision: int
    generation: int = 0
    used: dict[str, int] = {}
    consumers: int = 0


class Holder(Value, frozen=True, array_like=True):
    """A claim that a write took or ended, so that a picture can drop its own copy of it."""

    consumer: ConsumerId
    attempt: int


class Claimed(Variant, frozen=True, tag="claimed"):
    """Granted, and written."""


class AlreadyClaimed(Variant, frozen=True, tag="already_claimed"):
    """The consumer holds a claim already; this is what it really holds, and the attempt it holds it by."""

    attempt: int
    share: Share


class HostFull(Value, frozen=True):
    """As many consumers live on this host as the claim allows, or more."""

    host: ProviderId
    instances: int
    instances_max: int


class DoesNotFit(Variant, frozen=True, tag="does_not_fit"):
    shortfalls: tuple[Shortfall, ...]
    full: HostFull | None = None


class ShapeMoved(Variant, frozen=True, tag="shape_moved"):
    """Trees are not what the asker saw: those of `roots` have moved, those of `gone` are no more.

    `trees` holds all providers of the trees that moved, as they are now; of very large ones nothing, they are to be
    read by themselves.
    """

    roots: tuple[ProviderId, ...] = ()
    trees: tuple[ProviderState, ...] = ()
    gone: tuple[ProviderId, ...] = ()


class Superseded(Variant, frozen=True, tag="superseded"):
    """A later attempt was seen, or this one has ended. `attempt` is the highest seen; 0 if none is known."""

    attempt: int
    ended: bool


class TooOld(Variant, frozen=True, tag="too_old"):
    """So long ago that it is no longer known whether this attempt has ended."""

    horizon_s: int


class Released(Variant, frozen=True, tag="released"):
    """Whatever the consumer held is free, and nothing up to this attempt will be granted again."""

    freed: bool


# What NotAllowed names if a provider of a claim's share is of another cell: a bare-metal node may go to another one between
# the choice and the claim.
SHARE_CELL = "share.cell"


class NotAllowed(Variant, frozen=True, tag="not_allowed"):
    """It makes no sense, or the sender has no right to it; it will not be granted however often it is asked."""

    field: str
    reason: str


ClaimVerdict = (
    Claimed | AlreadyClaimed | DoesNotFit | ShapeMoved | Superseded | TooOld | Released | NotAllowed
)


class ClaimAnswered(Message, frozen=True, tag="claim.answered"):
    """What became of a claim, a swap or a release."""

    consumer: ConsumerId
    attempt: int
    verdict: ClaimVerdict


class ReportedInventory(Value, frozen=True):
    total: Natural
    reserved: Natural = 0
    min_unit: Positive = 1
    max_unit: Positive = INTEGER_MAX
    step_size: Positive = 1
    allocation_ratio: Ratio = 1.0


class ReportedProvider(Value, frozen=True):
    """One provider as its reporter sees it: these inventories, traits and aggregates, and no others.

    What is None is not the reporter's to say, and stays as it is. Traits that an operator set stay too.
    """

    id: ProviderId
    name: ProviderName
    parent: ProviderId | None = None
    inventories: Annotated[dict[ResourceClass, ReportedInventory], Meta(max_length=200)] | None = None
    traits: Annotated[tuple[Trait, ...], Meta(max_length=400)] | None = None
    aggregates: Annotated[tuple[AggregateId, ...], Meta(max_length=400)] | None = None


class ReportInventory(Message, frozen=True, tag="inventory.report"):
    """A reporter says what a tree is. Providers that it does not name stay as they are, unless in `removed`.

    `epoch` is the reporter's term where several share the work (0 where there is no ring); `sequence` orders the
    reports of one term (0: in the order they come). An older one than what was taken before is refused.
    The whole report is taken, or nothing of it.

    `foreign` asks whether something else keeps the tree: it was written by name and never reported, or it stands in another
    cell. `leave` and `take` are answered by `TreeKept` then; but `take` takes a tree of no cell, or of this one.
    """

    cell: CellName
    root: ProviderId
    providers: Annotated[tuple[ReportedProvider, ...], Meta(max_length=1000)]
    removed: Annotated[tuple[ProviderId, ...], Meta(max_length=1000)] = ()
    epoch: Counter = 0
    sequence: Counter = 0
    foreign: Literal["", "leave", "take"] = ""


class ReportAccepted(Variant, frozen=True, tag="accepted"):
    """Taken. `shape_moved` says whether it really changed anything that claims name."""

    shape: int
    shape_moved: bool


class ReportOutdated(Variant, frozen=True, tag="outdated"):
    """A later report was taken before: this one would undo it."""

    epoch: int
    sequence: int


class InventoryInUse(Variant, frozen=True, tag="in_use"):
    """What the report takes away is held by someone; `used` says how much."""

    provider: ProviderId
    resource: str
    used: int


class TreeKept(Variant, frozen=True, tag="kept"):
    """Something else keeps this tree, in this cell (empty: in none), with these numbers of its last report (0: it was never
    reported). Said to reports that ask, by `foreign`.
    """

    cell: str
    epoch: int
    sequence: int


ReportVerdict = ReportAccepted | ReportOutdated | InventoryInUse | NotAllowed | TreeKept


class ReportAnswered(Message, frozen=True, tag="report.answered"):
    root: ProviderId
    verdict: ReportVerdict


class InventoryRefused(Message, frozen=True, tag="inventory.refused"):
    """A report was not taken: told to whoever listens, since most reporters do not wait for an answer."""

    cell: CellName
    root: ProviderId
    verdict: ReportVerdict


class LogPosition(Value, frozen=True, order=True):
    """A place in the stream of changes. A new term starts when another process takes over the publishing."""

    term: int
    position: int


class ProviderGone(Value, frozen=True):
    """A provider was deleted at this revision: what is older about it is no longer true."""

    internal: int
    id: ProviderId
    revision: int


class AskSnapshot(Message, frozen=True, tag="snapshot"):
    """A page of all providers, in the order of their internal ids, those after `after`; or, with `since`, of those
    that changed since that cursor.
    """

    after: Counter = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200
    since: Cursor = ""


class SnapshotPage(Message, frozen=True, tag="snapshot.page"):
    """Some providers as they are now; `next` is where the next page starts, None on the last one.

    `published` is how far the stream of changes had come when the page was read, and `cursor` how far the books had:
    the page holds what was committed by then, published or not. `since` repeats the question's if these are only the
    changes since, with the providers that are `gone`. It is empty if the log does not reach back so far: then this is a
    page of everything.
    """

    providers: tuple[ProviderState, ...]
    published: LogPosition
    next: int | None = None
    since: Cursor = ""
    cursor: Cursor = ""
    gone: tuple[ProviderGone, ...] = ()


class AskRevisions(Message, frozen=True, tag="revisions"):
    """How late is what placement knows of providers? A page, in the order of their internal ids, after `after`."""

    after: Counter = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 5_000


class RevisionsPage(Message, frozen=True, tag="revisions.page"):
    """Providers by internal id, each with its revision at the same place of the other list; no others are between
    these. `next` is where the next page starts, None on the last one.
    """

    internals: tuple[int, ...]
    revisions: tuple[int, ...]
    next: int | None = None


class ProvidersChanged(Message, frozen=True, tag="providers.changed"):
    """Providers that changed: each with its whole state, or in `usage`, with what claims have changed of it; and the
    claims that the changes took or ended.

    Merge by revision. A jump in `at` (or another term) means that something was missed: catch up. Where a telling is
    complete, `cursor` says how far the books had come: whoever missed nothing knows all that was committed by then.
    """

    at: LogPosition
    providers: tuple[ProviderState, ...] = ()
    gone: tuple[ProviderGone, ...] = ()
    usage: tuple[ProviderUsage, ...] = ()
    claimed: tuple[Holder, ...] = ()
    ended: tuple[Holder, ...] = ()
    cursor: Cursor = ""
