"""Messages to and from placement: claims, reports, snapshots, changes.

The values inside the messages (amounts, inventories, verdicts) are placement's vocabulary, which all its clients share.
"""

from typing import Annotated, Literal

from msgspec import Meta

from bus.message import AnswerMessage, CellMessage, Kind, Message, Route, Scope
from engine.inventories import (
    INTEGER_MAX,
    ConsumerId,
    Counter,
    GroupMember,
    Holder,
    Integer,
    Label,
    Moment,
    ProviderId,
    ProviderState,
    ProviderUsage,
    ReportedProvider,
    ServerGroup,
    Share,
    Value,
    Variant,
)
from engine.refusals import TOGETHER_MAX, ClaimVerdict, NotAllowed

# How many providers a page of all of them may have.
SNAPSHOT_PAGE_MAX = 1_000

Attempt = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
# 0: what the consumer holds was written by name or over HTTP, and never claimed.
HeldAttempt = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
# How far the books had come, encoded by the store. Clients return it and do not read it.
Cursor = Annotated[str, Meta(pattern=r"^[0-9:,]*\Z")]
# An open vocabulary with the spelling of the HTTP API: INSTANCE and MIGRATION as in Nova, CLEANUP, or another.
ConsumerType = Annotated[str, Meta(pattern=r"^[A-Z0-9_]+\Z", max_length=255)]
# The project and user of a consumer whose request named none. Placement's HTTP API shows the same for consumers from
# before it asked for them; it allows no empty names.
NO_OWNER = "00000000-0000-0000-0000-000000000000"


class ConsumerMessage(Message, frozen=True):
    """A message about an attempt of a consumer. `issued_at` is when the attempt was first made, also in repeated messages."""

    SCOPE = Scope.CELL

    cell: Label
    consumer: ConsumerId
    attempt: Attempt
    issued_at: Moment


class ClaimResources(ConsumerMessage, frozen=True, tag="claim"):
    """Claim this share for this consumer.

    The answer to a repeated claim with the same attempt is what the consumer really holds. Without `project` or
    `user`, placement stores the id `00000000-0000-0000-0000-000000000000` instead.

    `takes_reserved`: what is reserved may be claimed, too, since it is reserved for just this consumer: it is on a bare-metal
    node already. It does not count from a cell.
    """

    ROUTE = Route(Kind.QUESTION, "placement.claims", answer="claim.answered", by=("scheduler", "conductor"))

    share: Share
    consumer_type: ConsumerType = "INSTANCE"
    project: Label = ""
    user: Label = ""
    group: ServerGroup | None = None
    takes_reserved: bool = False


class Heir(Value, frozen=True):
    """The consumer that takes over what a swap gives up. It has the instance's project and user, and the attempt that
    the swap leaves (`held_attempt`). It holds its part until it is released by that attempt.

    A CLEANUP takes the whole share. It holds the share until the silent host has confirmed that nothing is left there.
    A MIGRATION takes what the new share does not need: of each provider and class, the old amount minus the new one.
    If that is nothing at all, there is no such consumer.
    """

    id: ConsumerId
    type: Literal["CLEANUP", "MIGRATION"]


class SwapClaim(ConsumerMessage, frozen=True, tag="swap"):
    """Move the consumer from the share of one attempt to another share, as a later attempt: completely, or not at all.
    If the consumer is a member of a server group, `group` must name the group.

    Without `heir`, the old share is freed. Otherwise the heir takes it over. If the new share is on another host, the
    heir counts as a consumer of the old host and as a member of the group there. If the new share is on the same host,
    a MIGRATION does not count, since the instance counts there itself.

    `returns` is set if the instance goes back to the share that it had before a move. It names the MIGRATION that an
    earlier swap created as its heir; that consumer ends by this swap. Such a swap is granted without another check of
    free amounts, shapes and limits. The condition is that the instance and the migration together still hold `share`,
    and that one of them still lives on its host. Otherwise the swap is judged like any other. If the host that the
    instance leaves still has to clean up, name a CLEANUP as the heir: it takes over what the left share had beyond
    `share`.

    `leaves` are the hosts that members of an affinity group leave by one order, this consumer among them: members there do not
    keep it from another host. All other members do.
    """

    ROUTE = Route(Kind.QUESTION, "placement.claims", answer="claim.answered", by=("conductor",))

    held_attempt: HeldAttempt
    share: Share
    heir: Heir | None = None
    returns: ConsumerId | None = None
    group: ServerGroup | None = None
    leaves: Annotated[tuple[ProviderId, ...], Meta(max_length=TOGETHER_MAX)] = ()


class ReleaseClaim(ConsumerMessage, frozen=True, tag="release"):
    """End the consumer at this attempt: free what it holds, and refuse claims of this attempt and earlier ones.

    The API level names the `project` of the instance, which may be empty: a consumer of another project, or of another type
    than INSTANCE, is not released. A cell names none.

    With `leaves_group`, the consumer keeps what it holds, and only leaves its server group: its instance does not come
    back there. A consumer that is unknown or has ended stays as it is, and so does a later attempt.
    """

    ROUTE = Route(Kind.ORDER, "placement.work", answer="claim.answered", by=("scheduler", "conductor"))

    project: Label | None = None
    leaves_group: bool = False


class ClaimAnswered(AnswerMessage, frozen=True, tag="claim.answered"):
    """The verdict on a claim, a swap or a release."""

    consumer: ConsumerId
    attempt: Integer
    verdict: ClaimVerdict


class ReportInventory(CellMessage, frozen=True, tag="inventory.report"):
    """Reports the state of a tree. Providers that are not named stay as they are, unless they are in `removed`, or the report
    is `whole`: its reporter does not know what placement has of the tree, and names all that it has. Then the other providers
    that were reported go. Those that were made by name stay, with all above them.

    `epoch` is the reporter's term where several share the work (0 where there is no ring). `sequence` orders the
    reports of one term (0: in the order of arrival). A report older than an accepted one is refused. The whole report
    is accepted, or nothing of it.

    `foreign` says what to do with a tree that something else keeps: one that was written by name and never reported, or
    one in another cell. With `leave`, such a tree is not changed, and the answer is `TreeKept`. With `take`, a tree of no
    cell or of this cell is taken over; for a tree of another cell the answer is `TreeKept`. A reporter that sets
    `foreign` reports for all cells: its numbers are compared across them, and also after the tree is removed.
    """

    ROUTE = Route(
        Kind.ORDER, "placement.work", answer="report.answered", by=("compute", "ironic"), public=True
    )

    root: ProviderId
    providers: Annotated[tuple[ReportedProvider, ...], Meta(max_length=1000)]
    removed: Annotated[tuple[ProviderId, ...], Meta(max_length=1000)] = ()
    epoch: Counter = 0
    sequence: Counter = 0
    foreign: Literal["", "leave", "take"] = ""
    whole: bool = False


class ReportAccepted(Variant, frozen=True, tag="accepted"):
    """The report is accepted. `shape_moved` says whether it changed anything that claims depend on."""

    shape: Integer
    shape_moved: bool


class ReportOutdated(Variant, frozen=True, tag="outdated"):
    """The report is refused, since placement has already accepted it, or a later one.

    `epoch` and `sequence` are those of the last report that was accepted.
    """

    epoch: Integer
    sequence: Integer


class InventoryInUse(Variant, frozen=True, tag="in_use"):
    """The report removes an inventory that is in use; `used` says how much."""

    provider: ProviderId
    resource: str
    used: Integer


class TreeKept(Variant, frozen=True, tag="kept"):
    """The report is refused, since something else keeps this tree. Only reports with `foreign` get this answer.

    `cell` is the cell of the tree, empty if it is in none. `epoch` and `sequence` are those of its last report, 0 if
    it was never reported.
    """

    cell: str
    epoch: Integer
    sequence: Integer


ReportVerdict = ReportAccepted | ReportOutdated | InventoryInUse | NotAllowed | TreeKept


class ReportAnswered(AnswerMessage, frozen=True, tag="report.answered"):
    root: ProviderId
    verdict: ReportVerdict


class InventoryRefused(CellMessage, frozen=True, tag="inventory.refused"):
    """A report was refused. Published as an event, since most reporters do not wait for an answer."""

    ROUTE = Route(Kind.EVENT, by=("placement",), public=True)

    root: ProviderId
    verdict: ReportVerdict


class LogPosition(Value, frozen=True, order=True):
    """A position in the stream of changes that placement publishes.

    Each process that takes over publishing begins a new term.
    """

    term: Integer
    position: Integer


class ProviderGone(Value, frozen=True):
    """A provider was deleted at this revision: older states of it are outdated."""

    internal: Integer
    id: ProviderId
    revision: Integer


class AskSnapshot(Message, frozen=True, tag="snapshot"):
    """Asks for a page of all providers, in the order of their internal ids, after the id `after`.

    With `since`, only the providers that changed after that cursor of an earlier answer.
    """

    ROUTE = Route(
        Kind.QUESTION, "placement.questions", answer="snapshot.page", by=("scheduler", "ironic", "operator")
    )

    after: Counter = 0
    limit: Annotated[int, Meta(ge=1, le=SNAPSHOT_PAGE_MAX)] = 200
    since: Cursor = ""


class SnapshotPage(AnswerMessage, frozen=True, tag="snapshot.page"):
    """One page of providers as they are now. `next` starts the next page, null on the last one.

    `published` is how far placement had published its changes when the page was read. `cursor` is how far the books had
    come: the page has everything that was committed by then, published or not.

    If the question had a cursor, placement answers with the providers that changed after it, and with the deleted ones
    in `gone`; `since` repeats that cursor. If placement no longer knows all changes since then, if they are too many,
    or if the question had no cursor, the page is one of all providers, and `since` is empty.

    The first page of changes also has the consumers that joined and left server groups, as `ProvidersChanged` has them.
    A page of all providers has no members: ask for them (`AskMembers`).
    """

    providers: tuple[ProviderState, ...]
    published: LogPosition
    next: Integer | None = None
    since: Cursor = ""
    cursor: Cursor = ""
    gone: tuple[ProviderGone, ...] = ()
    joined: tuple[GroupMember, ...] = ()
    left: tuple[Holder, ...] = ()


class AskRevisions(Message, frozen=True, tag="revisions"):
    """Asks for a page of providers' current revisions, in the order of the providers' internal ids, after the id `after`."""

    ROUTE = Route(Kind.QUESTION, "placement.questions", answer="revisions.page", by=("scheduler", "operator"))

    after: Counter = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 5_000


class RevisionsPage(AnswerMessage, frozen=True, tag="revisions.page"):
    """A page of the internal ids of providers, and in a second list of the same order their revisions. A provider's
    revision grows with each write, so a reader sees which of the states that it knows are outdated.

    There are no providers with other internal ids between these. `next` is where the next page begins, null on the last
    page.
    """

    internals: tuple[Integer, ...]
    revisions: tuple[Integer, ...]
    next: Integer | None = None


class AskMembers(Message, frozen=True, tag="members"):
    """Asks for a page of the members of all server groups, in the order of the members' internal ids, after the id `after`."""

    ROUTE = Route(Kind.QUESTION, "placement.questions", answer="members.page", by=("scheduler", "operator"))

    after: Counter = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 500


class MembersPage(AnswerMessage, frozen=True, tag="members.page"):
    """A page of the members of server groups as they are now. `next` is where the next page begins, null on the last page."""

    members: tuple[GroupMember, ...]
    next: Integer | None = None


class ProvidersChanged(Message, frozen=True, tag="providers.changed"):
    """An event: providers that changed, and the claims that these changes granted or ended.

    Each provider comes with its whole state. If only claims changed it, it comes in `usage` instead, with what they
    changed. Readers merge providers by revision. `at` numbers these events: if it skips a position, or has another term
    than before, the reader has missed an event and must catch up. `cursor` is set when the changes are complete up to
    it: a reader that missed nothing then knows everything committed by that point.

    `joined` has the members of server groups that claims and swaps placed on a host. An entry of `left` ends all
    memberships of a consumer up to its attempt. Readers merge them by attempt, first those that joined.
    """

    ROUTE = Route(Kind.EVENT, by=("placement",))

    at: LogPosition
    providers: tuple[ProviderState, ...] = ()
    gone: tuple[ProviderGone, ...] = ()
    usage: tuple[ProviderUsage, ...] = ()
    claimed: tuple[Holder, ...] = ()
    ended: tuple[Holder, ...] = ()
    cursor: Cursor = ""
    joined: tuple[GroupMember, ...] = ()
    left: tuple[Holder, ...] = ()
