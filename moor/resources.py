"""The table of what people see and name: one row for each kind of thing.

A row names the client's methods that list, show and delete such things, and says how one of them looks: as a line of a table
(`columns`) and by itself (`facts`). The commands `moor RESOURCE list|show|delete`, the completion of names in the shell and the pages
of the dashboard follow from it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Generic, TypeVar

from msgspec import Struct, structs
from rich.markup import escape
from rich.text import Text

from engine.inventories import INTEGER_MAX, capacity_of
from engine.refusals import rule_in_words
from moor.client import (
    AggregateState,
    BudgetState,
    CampaignHost,
    CampaignState,
    CampaignWork,
    CellState,
    Change,
    ClassAmounts,
    Client,
    DeadLetter,
    DeviceGroup,
    DeviceProfile,
    Flavor,
    GroupState,
    HostsFound,
    HostState,
    InventoryState,
    KeepingWeek,
    KnownApplication,
    Listing,
    Movement,
    NamedImage,
    PolicyState,
    PolicyValue,
    ProviderState,
    Question,
    QuotaState,
    ReportedInventory,
    host_in_cell,
)
from moor.options import on_bus
from moor.showing import (
    INSTANCES,
    cell_life,
    facts_of_host,
    host_state,
    in_order,
    kind_of_host,
    plain,
    size_in_words,
    time_in_words,
    why_of_host,
)
from moor.tables import Amount, Columns, styled

T = TypeVar("T")

# The facts about a thing, each with its label, in Rich's markup. Empty facts are left out where they are shown.
Facts = Sequence[tuple[str, str]]


class ResourceKind(Struct, Generic[T], frozen=True, kw_only=True):
    """One kind of thing.

    `word` is one of them in messages, `command` its group of commands. `filters` are the arguments of `list` that are flags of
    the command and fields of the page. `of_page` makes the items of a page of the list, where they are more than what the list
    yields. `operates` are the verbs for which the commands connect as an operator. `inside` says that one asks for such things as a project.
    `path` is the page of the dashboard; without it there is none. `opened` makes of its arguments, which are flags of all these commands,
    what the methods are called on; `told` is what people are told beside what was found there.
    """

    word: str
    command: str
    columns: Columns[T]
    # The help of `list`, if more is to be said than what is listed.
    lists: str = ""
    list: Callable[..., Listing[Any, Any] | Awaitable[Sequence[T]]]
    plural: str = ""
    filters: Sequence[str] = ()
    of_page: Callable[[Any], Sequence[T]] | None = None
    show: Callable[..., Awaitable[Any]] | None = None
    facts: Callable[[Any], Facts] = lambda _: ()
    delete: Callable[..., Awaitable[Any]] | None = None
    named_by: str = "NAME"
    named_how: str = ""
    opened: Callable[..., AbstractAsyncContextManager[Any]] = on_bus
    told: Callable[[Any], Sequence[str]] = lambda _: ()
    operates: frozenset[str] = frozenset({"create", "set", "delete"})
    inside: bool = False
    path: str = ""
    page_of: Callable[[T], str] | None = None
    # How people call it, if not by what `-o name` prints.
    in_words: Callable[[T], str] | None = None

    @property
    def several(self) -> str:
        return self.plural or f"{self.word}s"

    @property
    def nothing(self) -> str:
        return f"no {self.several}"

    def called(self, item: T) -> str:
        """How one names it."""
        return self.columns.name_of(item)


def _pairs(pairs: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in pairs.items())


# Things that are stored under names.

FLAVOR = ResourceKind[Flavor](
    word="flavor",
    command="flavor",
    inside=True,
    list=Client.list_flavors,
    show=Client.show_flavor,
    delete=Client.delete_flavor,
    columns=Columns(
        {
            "name": lambda each: each.name,
            "vcpus": lambda each: str(each.vcpus),
            "ram": lambda each: str(each.ram_mb),
            "disk": lambda each: str(each.root_gb),
            "extra specs": lambda each: _pairs(dict(sorted(each.extra_specs.items()))),
        },
        prose=("extra specs",),
        numbers=("vcpus", "ram", "disk"),
    ),
    facts=lambda each: (
        ("flavor", escape(each.name)),
        *(
            (name, str(amount))
            for name in Flavor.__struct_fields__
            if name not in ("name", "extra_specs") and (amount := getattr(each, name))
        ),
        *((escape(key), escape(value)) for key, value in sorted(each.extra_specs.items())),
    ),
)

PLACES = ("source", "checksum", "kernel", "ramdisk")
IMAGE = ResourceKind[NamedImage](
    word="image",
    command="image",
    inside=True,
    list=Client.list_images,
    show=Client.show_image,
    delete=Client.delete_image,
    columns=Columns(
        {
            "name": lambda each: each.name,
            "source": lambda each: each.source,
            "properties": lambda each: _pairs(dict(sorted(each.properties.items()))),
        },
        prose=("source", "properties"),
    ),
    facts=lambda each: (
        ("image", escape(each.name)),
        *((field, escape(getattr(each, field))) for field in PLACES),
        *((escape(key), escape(value)) for key, value in sorted(each.properties.items())),
    ),
)


def device_group_in_words(group: DeviceGroup) -> str:
    return ", ".join(
        (
            *(f"resources:{name}={amount}" for name, amount in sorted(group.resources.items())),
            *(f"trait:{trait}=required" for trait in group.required),
            *(f"trait:{trait}=forbidden" for trait in group.forbidden),
        )
    )


PROFILE = ResourceKind[DeviceProfile](
    word="device profile",
    command="device-profile",
    inside=True,
    list=Client.list_device_profiles,
    show=Client.show_device_profile,
    delete=Client.delete_device_profile,
    columns=Columns(
        {
            "name": lambda each: each.name,
            "groups": lambda each: "; ".join(map(device_group_in_words, each.groups)),
            "description": lambda each: each.description,
        },
        prose=("groups", "description"),
    ),
    facts=lambda each: (
        ("device profile", escape(each.name)),
        ("description", escape(each.description)),
        *(
            (f"group {number}", escape(device_group_in_words(group)))
            for number, group in enumerate(each.groups)
        ),
    ),
)


def _policy(group: GroupState) -> str:
    most = f", at most {group.max_per_host} on a host" if group.max_per_host > 1 else ""
    return "; ".join((f"{group.policy}{most}", *map(rule_in_words, group.rules)))


GROUP = ResourceKind[GroupState](
    word="server group",
    command="group",
    list=Client.list_groups,
    filters=("name",),
    show=Client.show_group,
    delete=Client.delete_group,
    named_by="ID|NAME",
    operates=frozenset(),
    inside=True,
    path="/groups",
    page_of=lambda each: f"/groups/{each.id}",
    in_words=lambda each: each.name or str(each.id),
    columns=Columns(
        {
            "id": lambda each: str(each.id),
            "name": lambda each: each.name,
            "project": lambda each: each.project,
            "policy": _policy,
            "members": lambda each: str(each.size),
        },
        numbers=("members",),
        ids={"id": lambda _: True},
    ),
    facts=lambda each: (
        ("group", str(each.id)),
        ("name", escape(each.name)),
        ("project", escape(each.project)),
        ("policy", _policy(each)),
        ("members", str(each.size)),
        *(
            (" " * bool(number), f"{member.consumer} on {escape(member.host)}")
            for number, member in enumerate(each.members, 1)
        ),
    ),
)

# Quotas: each limit is a line.


def limits_of(quota: QuotaState) -> list[tuple[str, int, int | None]]:
    """The name of each limit, how much is used, and the limit."""
    names = {**quota.limits, **quota.used}
    return [
        (name, quota.used.get(name, 0), quota.limits.get(name))
        for name in sorted(names, key=lambda name: (name != "instances", name))
    ]


QUOTA = ResourceKind[QuotaState](
    word="quota of project",
    plural="quotas",
    command="quota",
    list=Client.list_quotas,
    show=Client.show_quota,
    named_by="PROJECT",
    columns=Columns(
        {
            "project": lambda each: each.project,
            "limits": lambda each: ", ".join(
                f"{name} {used} of {limit}" for name, used, limit in limits_of(each) if limit is not None
            ),
        },
        prose=("limits",),
    ),
    facts=lambda each: (
        ("project", escape(each.project)),
        *(
            (
                escape(name),
                f"{used} used, no limit"
                if limit is None
                else f"{used} of {limit} used, {max(0, limit - used)} free",
            )
            for name, used, limit in limits_of(each)
        ),
    ),
)

APPLICATION = ResourceKind[KnownApplication](
    word="application",
    command="application",
    list=Client.list_applications,
    show=Client.show_application,
    operates=frozenset({"list", "show", "create", "delete"}),
    columns=Columns(
        {
            "application": lambda each: each.name,
            "user": lambda each: f"moor-app-{each.name}",
            "acts for": lambda each: "all projects" if each.admin else ", ".join(each.projects),
        },
        prose=("acts for",),
    ),
    facts=lambda each: (
        ("application", each.name),
        ("user", f"moor-app-{each.name}"),
        ("acts for", "all projects" if each.admin else ", ".join(each.projects)),
    ),
)

# Hosts, with what they use; cells; aggregates.

# The classes by which an operator sizes hosts, and how the list calls them.
MAIN_CLASSES = {"VCPU": "cpu", "MEMORY_MB": "memory MB", "DISK_GB": "disk GB"}


class HostShown(Struct, frozen=True):
    """A host, and how much of each resource class it has and uses, as far as a scheduler knows."""

    host: HostState
    # None: nobody was asked.
    uses: Mapping[str, ClassAmounts] | None = None

    @property
    def document(self) -> Mapping[str, Any]:
        return {**plain(self.host), **({} if self.uses is None else {"uses": self.uses})}


def hosts_in(page: HostsFound) -> list[HostShown]:
    uses = {each.host: each.classes for each in page.uses}
    return [HostShown(each, uses.get(each.id, {})) for each in page.hosts]


def _use(name: str) -> Callable[[HostShown], str | Amount]:
    def use(each: HostShown) -> str | Amount:
        found = (each.uses or {}).get(name)
        return Amount(found.used, found.capacity) if found is not None and found.capacity else ""

    return use


def _facts_of_host(each: HostShown) -> Iterator[tuple[str, str]]:
    yield from facts_of_host(each.host)
    for name, amounts in in_order(each.uses or {}):
        if amounts.capacity or amounts.used:
            free = max(amounts.capacity - amounts.used, 0)
            bar = Amount(amounts.used, amounts.capacity).text.markup
            yield name, f"{bar} {free:,} free"


async def _host_shown(moor: Client, name: str) -> HostShown:
    found = hosts_in(await moor.list_hosts(name=name).page())
    # None, or several: then this says so.
    return found[0] if name and len(found) == 1 else HostShown(await moor.show_host(name))


HOST = ResourceKind[HostShown](
    word="host",
    command="host",
    list=Client.list_hosts,
    filters=("cell", "place", "mode", "up", "kind"),
    of_page=hosts_in,
    show=_host_shown,
    path="/hosts",
    page_of=lambda each: f"/hosts/{each.host.cell}/{each.host.name}",
    columns=Columns(
        {
            "host": lambda each: each.host.name,
            "kind": lambda each: kind_of_host(each.host),
            "cell": lambda each: each.host.cell,
            "zone": lambda each: each.host.availability_zone,
            "place": lambda each: each.host.place,
            "state": lambda each: styled(host_state(each.host)),
            "instances": lambda each: f"{each.host.instances:,}",
            "building": lambda each: str(each.host.io_ops or ""),
            **{heading: _use(name) for name, heading in MAIN_CLASSES.items()},
            "reason": lambda each: why_of_host(each.host),
        },
        prose=("reason",),
        numbers=("instances", "building"),
        name=lambda each: (
            host_in_cell(each.host.cell, each.host.name) if each.host.also_in else each.host.name
        ),
    ),
    facts=lambda each: tuple(_facts_of_host(each)),
)

CELL = ResourceKind[CellState](
    word="cell",
    command="cell",
    list=Client.list_cells,
    filters=("up",),
    show=Client.show_cell,
    columns=Columns(
        {
            "cell": lambda each: each.cell,
            "state": lambda each: styled(cell_life(each.life)),
            "last heard": lambda each: time_in_words(each.heard_at),
            "conductors": lambda each: (
                f"{sum(one.life == 'up' for one in each.conductors)} of {len(each.conductors)} up"
            ),
            "hosts": lambda each: f"{each.hosts_up} of {each.hosts} up",
            "instances": lambda each: str(each.instances),
            "waiting": lambda each: str(each.waiting),
            "reason": lambda each: each.reason,
        },
        prose=("reason",),
    ),
    facts=lambda each: (
        ("cell", each.cell),
        ("state", cell_life(each.life)),
        ("heard", time_in_words(each.heard_at)),
        ("reason", escape(each.reason)),
        ("hosts", f"{each.hosts_up} of {each.hosts} up"),
        ("instances", str(each.instances)),
        ("waiting", f"{each.waiting} have an order that the cell has not answered"),
        *(
            (
                "conductor",
                f"{escape(one.name)} {cell_life(one.life)}, heard {time_in_words(one.heard_at)}"
                + (f": [red]{escape(one.trouble)}[/red]" if one.trouble else ""),
            )
            for one in each.conductors
        ),
    ),
)

AGGREGATE = ResourceKind[AggregateState](
    word="aggregate",
    command="aggregate",
    list=Client.list_aggregates,
    show=Client.show_aggregate,
    delete=Client.delete_aggregate,
    named_by="ID|NAME",
    operates=frozenset(),
    path="/aggregates",
    page_of=lambda each: f"/aggregates/{each.name or each.id}",
    columns=Columns(
        {
            "aggregate": lambda each: each.name,
            "id": lambda each: str(each.id),
            "hosts": lambda each: f"{each.hosts_count:,}",
            "metadata": lambda each: _pairs(each.metadata),
        },
        prose=("metadata",),
        numbers=("hosts",),
        ids={"id": lambda _: True},
    ),
    facts=lambda each: (
        ("aggregate", escape(each.name)),
        ("id", str(each.id)),
        *((escape(key), escape(value)) for key, value in each.metadata.items()),
        ("hosts", escape(", ".join(each.hosts)) or "none"),
    ),
)

# Placement's books.


def _fullest(provider: ProviderState) -> str | Text:
    """The class with the highest usage in relation to its capacity."""
    shares = [
        (stock.used / max(1, capacity_of(stock)), f"{resource} {stock.used}/{capacity_of(stock)}")
        for resource, stock in sorted(provider.inventories.items())
        if stock.used
    ]
    if not shares:
        return Text("idle", "dim") if provider.inventories else ""
    return max(shares, key=lambda each: each[0])[1]


PROVIDER = ResourceKind[ProviderState](
    word="provider",
    command="provider",
    list=Client.list_providers,
    show=Client.show_provider,
    delete=Client.delete_provider,
    named_by="PROVIDER",
    operates=frozenset({"list", "show", "create", "set", "delete"}),
    columns=Columns(
        {
            "name": lambda each: Text.assemble(("" if each.parent is None else "└ ", "dim"), each.name),
            "id": lambda each: str(each.id),
            "cell": lambda each: each.cell,
            "fullest": _fullest,
        },
        ids={"id": lambda _: True},
        name=lambda each: each.name,
    ),
)
INVENTORIES = Columns[tuple[str, InventoryState]](
    {
        "class": lambda each: each[0],
        "used": lambda each: Amount(each[1].used, capacity_of(each[1])),
        "calculated as": lambda each: _formula(each[1]),
        "one claim": lambda each: _bounds(each[1]),
    }
)


def _formula(stock: ReportedInventory) -> str:
    left = f"{stock.total} - {stock.reserved}" if stock.reserved else str(stock.total)
    if stock.allocation_ratio == 1:
        return left
    return f"{f'({left})' if stock.reserved else left} x {stock.allocation_ratio:g}"


def _bounds(stock: ReportedInventory) -> str:
    most = "" if stock.max_unit == INTEGER_MAX else f" to {stock.max_unit}"
    step = "" if stock.step_size == 1 else f" by {stock.step_size}"
    return f"{stock.min_unit}{most or ' or more'}{step}"


NAMES = Columns[str]({"name": lambda each: each})
TRAIT = ResourceKind[str](
    word="trait",
    plural="traits",
    command="provider trait",
    list=Client.list_traits,
    delete=Client.delete_trait,
    operates=frozenset({"list", "create", "delete"}),
    columns=NAMES,
)
CLASS = ResourceKind[str](
    word="resource class",
    plural="resource classes",
    command="provider class",
    list=Client.list_classes,
    delete=Client.delete_class,
    operates=frozenset({"list", "create", "delete"}),
    columns=NAMES,
)

# Instances, their moves, and dead letters.

INSTANCE = ResourceKind[Any](
    word="instance",
    command="",
    list=Client.list_instances,
    filters=("state", "cell", "host", "name", "part", "flavor", "image"),
    named_by="ID|NAME",
    operates=frozenset(),
    inside=True,
    path="/instances",
    page_of=lambda each: f"/instances/{each.id}",
    in_words=lambda each: each.name or str(each.id),
    columns=INSTANCES,
)


def how_it_ended(change: Change) -> str:
    if not change.outcome:
        return "goes on"
    at = f" at {time_in_words(change.ended_at)}" if change.ended_at else ""
    by = f" by {change.ended_by}" if change.ended_by else ""
    why = f": {change.failure}" if change.failure else ""
    return f"{change.outcome}{at}{by}{why}"


HISTORY = Columns[Change](
    {
        "when": lambda each: time_in_words(each.asked_at),
        "what": lambda each: each.what,
        "by": lambda each: each.by,
        "from": lambda each: each.source,
        "to": lambda each: each.destination,
        "size": lambda each: size_in_words(each.size) if each.size else "",
        "how it ended": how_it_ended,
    },
    prose=("size", "how it ended"),
)
MIGRATION = ResourceKind[Change](
    word="move",
    command="migration",
    list=Client.list_moves,
    filters=("host", "ended"),
    operates=frozenset(),
    path="/moves",
    page_of=lambda each: f"/instances/{each.instance}",
    columns=Columns(
        {
            "instance": lambda each: str(each.instance),
            "since": lambda each: time_in_words(each.asked_at),
            "what": lambda each: each.what,
            "from": lambda each: each.source,
            "to": lambda each: each.destination,
            "by": lambda each: each.by,
            "how it ended": how_it_ended,
        },
        prose=("how it ended",),
        # The instance of a move that is over may be deleted.
        ids={"instance": lambda each: not each.outcome},
    ),
)

# How much of a message is shown to people.
BODY_SHOWN_MAX = 4000


def _body_in_short(letter: DeadLetter) -> str:
    body = letter.parcel.body.decode(errors="replace")
    more = f"\n[dim]... {len(body)} characters in all[/dim]" if len(body) > BODY_SHOWN_MAX else ""
    return f"{escape(body[:BODY_SHOWN_MAX])}{more}"


DEAD_LETTER = ResourceKind[DeadLetter](
    word="dead letter",
    command="dead",
    list=Client.list_dead_letters,
    filters=("queue", "limit"),
    show=Client.show_dead_letter,
    named_by="HANDLE",
    operates=frozenset({"list", "show", "replay", "delete"}),
    path="/dead",
    columns=Columns(
        {
            "handle": lambda each: each.handle,
            "queue": lambda each: each.queue,
            "type": lambda each: each.type,
            "attempts": lambda each: str(each.attempts or ""),
            "since": lambda each: time_in_words(each.buried_at or each.sent_at),
            "from": lambda each: each.origin.sender,
            # The traceback of a bug follows on further lines.
            "reason": lambda each: each.reason.partition("\n")[0],
        },
        prose=("type", "reason"),
        numbers=("attempts",),
    ),
    facts=lambda each: (
        ("handle", escape(each.handle)),
        ("reason", f"[red]{escape(each.reason)}[/red]"),
        ("queue", escape(each.queue)),
        ("type", escape(each.type)),
        ("attempts", str(each.attempts) if each.attempts else "not counted"),
        ("given up by", escape(each.where)),
        ("dead since", time_in_words(each.buried_at) or "not known: the broker itself gave it up"),
        ("from", escape(each.origin.sender) or "a user that did not say who it is"),
        ("sent", time_in_words(each.sent_at)),
        ("size", f"{len(each.parcel.body):,} bytes"),
        ("message", _body_in_short(each)),
    ),
)

# Campaigns, movements, budgets, and questions to persons.

_COLOURS = {
    **dict.fromkeys(
        ("running", "fencing", "fenced", "emptying", "giving", "hook", "returning", "granted", "moving"),
        "cyan",
    ),
    **dict.fromkeys(("paused", "skipped", "asked", "open"), "yellow"),
    **dict.fromkeys(("stopped", "failed", "given_up"), "red"),
    **dict.fromkeys(("done", "answered"), "green"),
}


def _coloured(word: str) -> str:
    colour = _COLOURS.get(word, "dim")
    return f"[{colour}]{word.replace('_', ' ')}[/{colour}]"


def _progress(done: int, of: int) -> str | Amount:
    return Amount(done, of) if of else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {_coloured(word)}" for word, count in counts.items() if count)


NAMED_SHOWN_MAX = 3


def _hosts_in_words(work: CampaignWork) -> str:
    """Which hosts a campaign is over."""
    more = f" and {len(work.hosts) - NAMED_SHOWN_MAX:,} more" if len(work.hosts) > NAMED_SHOWN_MAX else ""
    filters = {"cell": work.cell, "domain": work.place, "mode": work.mode}
    chosen = ", ".join(f"{name} {value}" for name, value in filters.items() if value)
    return chosen or ", ".join(work.hosts[:NAMED_SHOWN_MAX]) + more


def _facts_of_work(work: CampaignWork) -> Facts:
    return (
        ("what", work.kind),
        ("over", escape(_hosts_in_words(work))),
        ("then", work.then if work.kind == "drain" else ""),
        ("fence", f"{escape(work.fence)}, at most {work.fence_s:,} s" if work.fence else ""),
        ("hook", f"{escape(work.hook)}, at most {work.hook_s:,} s" if work.hook else ""),
        ("back", f"within {work.whole_s:,} s" if work.hook else ""),
        ("at once", f"hosts {work.at_once:,}, guests {work.guests_at_once:,}"),
        ("canary", f"{work.canary:,}" if work.canary else ""),
        ("failures", f"stops at {work.failures_max:,}"),
        ("to", escape(", ".join(work.to))),
        ("waits", f"at most {work.wait_s:,} s for room" if work.wait_s else ""),
        ("reason", escape(work.reason)),
    )


def _called(each: CampaignState) -> str:
    return each.name or str(each.id)


CAMPAIGN = ResourceKind[CampaignState](
    word="campaign",
    command="campaign",
    list=Client.list_campaigns,
    filters=("ended",),
    named_by="ID|NAME",
    named_how="The campaign's name or id.",
    operates=frozenset({"set"}),
    path="/campaigns",
    page_of=lambda each: f"/campaigns/{each.id}",
    columns=Columns(
        {
            "campaign": _called,
            "what": lambda each: f"{each.work.kind} {_hosts_in_words(each.work)}",
            "state": lambda each: styled(_coloured(each.life)),
            "hosts": lambda each: _progress(
                sum(each.hosts.get(stage, 0) for stage in ("done", "failed", "skipped")),
                sum(each.hosts.values()),
            ),
            "guests": lambda each: _progress(each.movements.get("done", 0), sum(each.movements.values())),
            "since": lambda each: time_in_words(each.asked_at),
            "by": lambda each: each.by,
            "reason": lambda each: each.reason or each.work.reason,
        },
        prose=("what", "reason"),
    ),
    facts=lambda each: (
        ("campaign", escape(_called(each))),
        ("id", str(each.id)),
        ("state", _coloured(each.life) + (f": {escape(each.reason)}" if each.reason else "")),
        *_facts_of_work(each.work),
        ("by", escape(each.by)),
        ("since", time_in_words(each.asked_at)),
        ("ended", time_in_words(each.ended_at)),
        ("hosts", _counts(each.hosts)),
        ("guests", _counts(each.movements)),
    ),
)
HOSTS_OF_CAMPAIGN = Columns[CampaignHost](
    {
        "host": lambda each: each.host,
        "cell": lambda each: each.cell,
        "place": lambda each: each.place,
        "stage": lambda each: styled(_coloured(each.stage)),
        "moved": lambda each: _progress(each.moved, each.moved + each.left + each.stay),
        "stay": lambda each: f"{each.stay:,}" if each.stay else "",
        "since": lambda each: time_in_words(each.began_at),
        "reason": lambda each: each.reason,
    },
    prose=("reason",),
    numbers=("stay",),
)

# What keepers have done by themselves.
WEEKS = Columns[KeepingWeek](
    {
        "week": lambda each: each.week,
        "hosts lost": lambda each: f"{each.lost:,}",
        "recovered": lambda each: _progress(each.recovered, each.lost),
        "left": lambda each: f"{each.left:,}" if each.left else "",
        "took": lambda each: _took(each.seconds),
        "at most": lambda each: _took(each.seconds_most),
        "guests": lambda each: f"{each.moved:,}" if each.moved else "",
        "stay": lambda each: f"{each.stay:,}" if each.stay else "",
        "balances": lambda each: f"{each.balances:,}" if each.balances else "",
        "steps": lambda each: f"{each.steps:,}" if each.balances else "",
        "gain": lambda each: (
            f"{each.reached:.0f} of {each.promised:.0f} %"
            if each.promised is not None and each.reached is not None
            else ""
        ),
    },
)


def _took(seconds: int | None) -> str:
    return "" if seconds is None else str(timedelta(seconds=seconds))


MOVEMENT = ResourceKind[Movement](
    word="movement",
    command="campaign movements",
    list=Client.list_movements,
    filters=("campaign", "instance", "host", "life", "ended"),
    operates=frozenset(),
    path="/movements",
    page_of=lambda each: f"/instances/{each.instance}",
    columns=Columns(
        {
            "instance": lambda each: str(each.instance),
            "name": lambda each: each.name,
            "from": lambda each: each.host,
            "to": lambda each: each.to,
            "how": lambda each: each.kind,
            "state": lambda each: styled(_coloured(each.life)),
            "failures": lambda each: str(each.failures or ""),
            "since": lambda each: time_in_words(each.granted_at or each.asked_at),
            "cause": lambda each: each.cause,
            "reason": lambda each: each.reason,
        },
        prose=("reason",),
        numbers=("failures",),
        # The instance of a movement that is over may be deleted.
        ids={"instance": lambda each: each.life in ("planned", "granted", "moving")},
    ),
)


QUESTION = ResourceKind[Question](
    word="question",
    command="question",
    lists="What keepers must not decide alone: the open questions, or with --ended all of them, the newest first.",
    list=Client.list_questions,
    filters=("ended",),
    show=Client.show_question,
    named_by="ID",
    named_how="The question's id.",
    operates=frozenset({"answer"}),
    page_of=lambda each: f"/questions/{each.id}",
    columns=Columns(
        {
            "question": lambda each: str(each.id),
            "host": lambda each: host_in_cell(each.cell, each.host),
            "state": lambda each: styled(_coloured(each.life)),
            "answers": lambda each: each.answer or " | ".join(one.answer for one in each.choices),
            "since": lambda each: time_in_words(each.asked_at),
            "by": lambda each: each.by,
            "text": lambda each: each.text,
        },
        prose=("text",),
        ids={"question": lambda _: True},
    ),
    facts=lambda each: (
        ("question", str(each.id)),
        ("host", escape(host_in_cell(each.cell, each.host))),
        ("campaign", str(each.campaign or "")),
        ("text", escape(each.text)),
        *((escape(one.answer), escape(one.does)) for one in each.choices),
        ("since", time_in_words(each.asked_at)),
        ("state", _coloured(each.life) + (f": {escape(each.reason)}" if each.reason else "")),
        ("answer", " by ".join(filter(None, (escape(each.answer), escape(each.by))))),
        ("ended", time_in_words(each.ended_at)),
    ),
)


def _says(state: PolicyState) -> str:
    """The fields that a policy has, in words."""
    says = structs.asdict(state.policy).items()
    return ", ".join(
        f"{name} {value}" for name, value in says if name not in ("scope", "of") and value is not None
    )


POLICY = ResourceKind[PolicyState](
    word="policy",
    plural="policies",
    command="policy",
    lists="What keepers do by themselves, the widest policies first. One that they cannot follow has its problem beside it.",
    list=Client.list_policies,
    operates=frozenset({"set", "delete"}),
    columns=Columns(
        {
            "policy": lambda each: f"{each.policy.scope} {each.policy.of}".rstrip(),
            "says": _says,
            "set": lambda each: " by ".join(filter(None, (time_in_words(each.set_at), each.by))),
            "problem": lambda each: each.problem,
        },
        prose=("problem",),
    ),
)
# What counts for an instance.
POLICY_VALUES = Columns[PolicyValue](
    {
        "what": lambda each: each.field.replace("_", " "),
        "counts": lambda each: each.value,
        "by": lambda each: f"{each.scope} {each.of}".rstrip() or "default",
    }
)


def _limited(state: BudgetState) -> str:
    """The limits of a budget, in words."""
    budget = state.budget
    each = "the cloud" if budget.scope == "cloud" else f"each {budget.scope}"
    level = f" of level {budget.level}" if budget.level else ""
    return (f"{budget.scope} {budget.of}" if budget.of else f"{each}{level}") + (
        f", {budget.side}" if budget.side else ""
    )


def _used(used: int, most: int | None) -> str | Amount:
    return "" if most is None else Amount(used, most)


def _quiet(state: BudgetState) -> str:
    return ", ".join(state.budget.quiet)


BUDGET = ResourceKind[BudgetState](
    word="budget",
    command="budget",
    list=Client.list_budgets,
    show=Client.show_budget,
    delete=Client.delete_budget,
    columns=Columns(
        {
            "budget": lambda each: each.budget.name,
            "limits": _limited,
            "at once": lambda each: _used(each.use.at_once, each.budget.at_once),
            "per hour": lambda each: _used(each.use.last_hour, each.budget.per_hour),
            "alive": lambda each: str(each.budget.alive_min or ""),
            "quiet": _quiet,
            "most used by": lambda each: each.use.of.strip("*"),
        },
        numbers=("alive",),
    ),
    facts=lambda each: (
        ("budget", escape(each.budget.name)),
        ("limits", escape(_limited(each))),
        *(
            (name, f"{used:,} of {most:,}" + (f", {escape(each.use.of)}" if each.use.of.strip("*") else ""))
            for name, used, most in (
                ("at once", each.use.at_once, each.budget.at_once),
                ("per hour", each.use.last_hour, each.budget.per_hour),
            )
            if most is not None
        ),
        ("alive", f"at least {each.budget.alive_min:,}" if each.budget.alive_min else ""),
        ("quiet", _quiet(each)),
        ("set", " by ".join(filter(None, (time_in_words(each.set_at), escape(each.by))))),
    ),
)

# The whole table, but for the row of nodes: that is beside what reads them (bare_metal/nodes.py).
RESOURCES: Sequence[ResourceKind[Any]] = (
    *(INSTANCE, MIGRATION, FLAVOR, IMAGE, PROFILE, GROUP, QUOTA, APPLICATION),
    *(HOST, CELL, AGGREGATE, PROVIDER, TRAIT, CLASS, DEAD_LETTER),
    *(CAMPAIGN, MOVEMENT, BUDGET, QUESTION, POLICY),
)
