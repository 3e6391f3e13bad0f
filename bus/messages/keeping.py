"""Messages about movements: instances that move although nobody asked for that by their names. Campaigns empty hosts, and budgets
limit how much moves at once.

Keepers own campaigns, movements and budgets. They have instances moved by the same orders as clients.
"""

from typing import Annotated, Literal, NewType
from uuid import UUID

from msgspec import Meta

from bus.message import AnswerMessage, Kind, Message, Route, StrictMessage
from bus.messages.build import MoveKind
from engine.flavors import InstanceId, RequestId
from engine.goals import BalanceFigures, BalanceGoal, Portion
from engine.hosts import HostMode
from engine.inventories import Counter, GroupId, Integer, Label, Moment, Natural, ProviderId, UserName, Value
from engine.places import Level, Place

CampaignId = NewType("CampaignId", UUID)
MovementId = NewType("MovementId", UUID)

HOSTS_NAMED_MAX = 1000
# A campaign may be over so many hosts, and have so many guests planned by one question.
CAMPAIGN_HOSTS_MAX = 5000
PLANNED_MAX = 1000

# Budgets: limits on movements.

BudgetScope = Literal["cloud", "cell", "domain", "host", "project", "group"]
# A budget of domains or hosts may limit only the movements out of them, or only those into them; empty: both.
Side = Literal["", "out", "in"]


class MoveBudget(Value, frozen=True):
    """A limit on movements, by its name. A movement counts from its grant to its end, and for one hour after its grant in `per_hour`.

    `of` names the one cell, place, host (`c1/h1`), project or server group that is limited; empty: each of them by itself, of domains
    each of this `level`. In the times of day in `quiet` (`22:00-06:00`, UTC) nothing is granted. At least `alive_min` members of a
    group stay active where they are.
    """

    name: Annotated[Label, Meta(description="the budget's name")]
    scope: BudgetScope
    of: Label = ""
    level: Level = 0
    side: Side = ""
    at_once: Integer | None = None
    per_hour: Integer | None = None
    alive_min: Integer | None = None
    quiet: Annotated[tuple[Label, ...], Meta(max_length=24)] = ()


class BudgetUse(Value, frozen=True):
    """How much of a budget is used: by the one cell, domain, host, project or group `of` that uses most of it."""

    of: Label = ""
    at_once: Natural = 0
    last_hour: Natural = 0


class BudgetState(Value, frozen=True):
    """A budget and its use; `by` is the user that set it."""

    budget: MoveBudget
    use: BudgetUse = BudgetUse()
    by: Label = ""
    set_at: Moment | None = None


class SetBudget(StrictMessage, frozen=True, tag="budget.set"):
    """Create this budget, or change the one of its name. It counts from the next grant on."""

    ROUTE = Route(Kind.ORDER, "keeper.requests", answer="budget.found", by=("operator",))

    budget: MoveBudget
    for_user: UserName = ""


class DeleteBudget(StrictMessage, frozen=True, tag="budget.delete"):
    """Delete the budget of this name. The answer has it; it is empty if there was none."""

    ROUTE = Route(Kind.ORDER, "keeper.requests", answer="budget.found", by=("operator",))

    name: Label
    for_user: UserName = ""


class AskBudgets(StrictMessage, frozen=True, tag="budget.query"):
    """Asks for a page of budgets with their use, in the order of their names, after the name `after`; or for the one of this name."""

    ROUTE = Route(Kind.QUESTION, "keeper.questions", answer="budget.found", by=("admin",))

    name: Label = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class BudgetsFound(AnswerMessage, frozen=True, tag="budget.found"):
    """A page of budgets. `next` is the name after which the next page begins, empty on the last page."""

    budgets: tuple[BudgetState, ...]
    next: Label = ""


# Campaigns: what becomes of many hosts, one after the other.

# drain: its guests move away. evacuate: the host is down, and its guests are built anew elsewhere. restart: its guests move away,
# the hook runs, and the host is taken back. balance: some guests move to other hosts, by a plan.
CampaignKind = Literal["drain", "evacuate", "restart", "balance"]
Then = Literal["disable", "down"]
# rehearsed: nothing of it was done; its hosts say what would have been.
CampaignLife = Literal["running", "paused", "stopped", "cancelled", "done", "rehearsed"]
HostStage = Literal[
    "waiting",
    "held",
    "fencing",
    "asked",
    "fenced",
    "emptying",
    "giving",
    "hook",
    "returning",
    "done",
    "failed",
    "skipped",
]


class CampaignWork(Value, frozen=True):
    """The work of a campaign, and its hosts. `hosts` names them (`c1/h1` if several cells have the name). Without names they are all
    hypervisors of this `cell`, `place` and `mode` that are up; those of an evacuation are down.

    At most `at_once` hosts are out at the same time, and `guests_at_once` instances move. The first `canary` hosts go before all others, and
    if one of them fails, the campaign stops; so it does when `failures_max` hosts have failed. Guests move live, or else stopped
    meanwhile, to one of the hosts in `to` if these are named. One for which no host has room waits for it `wait_s` seconds.

    An evacuation with a `fence` switches each host off first: by a program of this name in the keepers' folder of hooks, which gets the host's
    name and cell, has `fence_s` seconds, and ends well only if the host is off. Then the host is set dead. If it does not end well, a person is
    asked. `by_policy`: only those guests leave for which the policies say so. Keepers begin such campaigns for hosts that are lost.

    A balance moves at most `moves_max` guests so that hosts come nearer to the `goal`, of all hosts if none are chosen; a guest that has moved
    within the last `rest_s` seconds stays. Its hosts are those that guests leave (`giving`). Each step is judged again before it is made.

    When a host is empty it stays draining (`disable`) or is set `down`. A restart runs the `hook`: a program of this name in the keepers'
    folder of hooks, with the host's name and cell. It has `hook_s` seconds. Then the host has `whole_s` seconds to be heard again.
    """

    kind: CampaignKind = "drain"
    hosts: Annotated[tuple[Label, ...], Meta(max_length=HOSTS_NAMED_MAX)] = ()
    cell: Label = ""
    place: Place = ""
    mode: HostMode | Literal[""] = ""
    then: Then = "disable"
    hook: Label = ""
    hook_s: Integer = 1800
    whole_s: Integer = 1800
    fence: Label = ""
    fence_s: Integer = 120
    by_policy: bool = False
    at_once: Integer = 1
    guests_at_once: Integer = 10
    canary: Integer = 0
    failures_max: Integer = 1
    to: Annotated[tuple[Label, ...], Meta(max_length=HOSTS_NAMED_MAX)] = ()
    wait_s: Integer = 0
    goal: BalanceGoal | Literal[""] = ""
    moves_max: Integer = 100
    rest_s: Integer = 86_400
    reason: Label = ""


class CampaignHost(Value, frozen=True):
    """A host of a campaign, and how far it is: at this `stage` since `stage_at`. `left` guests are to move yet, `moved` have moved, and
    `stay` do not; `reason` says why it waits or why it failed. `fence` is the program that switches it off before, and `unfenced` says why a
    lost host need not be off. `fenced_by` is the program, or the person, that says that it is off; `epoch` is the number of the setting
    by which it was set dead then. `lost_at` is when a lost host was last heard.
    """

    id: ProviderId
    host: Label
    cell: Label
    place: Place = ""
    stage: HostStage = "waiting"
    stage_at: Moment | None = None
    reason: str = ""
    fence: Label = ""
    unfenced: Label = ""
    fenced_by: Label = ""
    epoch: Counter | None = None
    lost_at: Moment | None = None
    left: Natural = 0
    moved: Natural = 0
    stay: Natural = 0
    began_at: Moment | None = None
    ended_at: Moment | None = None


class CampaignState(Value, frozen=True):
    """A campaign. `hosts` counts its hosts by their stages, and `movements` its movements by their states. `by` names the user who began it.
    A balance has `before` and `promised`, the figures of its plan, and `reached`, those when it ended.
    """

    id: CampaignId
    name: Label
    work: CampaignWork
    life: CampaignLife = "running"
    reason: str = ""
    by: Label = ""
    asked_at: Moment | None = None
    ended_at: Moment | None = None
    hosts: dict[Label, Natural] = {}
    movements: dict[Label, Natural] = {}
    before: BalanceFigures | None = None
    promised: BalanceFigures | None = None
    reached: BalanceFigures | None = None


class StartCampaign(StrictMessage, frozen=True, tag="campaign.start"):
    """Begin a campaign. The client chooses the id; a repeated order is not done twice. A host is in one campaign at a time: if another
    campaign that goes on has one of these hosts, the order is refused, and names it. With `join`, it is over the other hosts alone.
    """

    ROUTE = Route(Kind.ORDER, "keeper.requests", answer="campaign.found", by=("operator",))

    id: CampaignId
    work: CampaignWork
    name: Label = ""
    join: bool = False
    for_user: UserName = ""


class SetCampaign(StrictMessage, frozen=True, tag="campaign.set"):
    """Have a campaign pause, go on, or end; the answer is empty if there is none of this name or id. While it pauses, what moves goes on, and nothing else begins; if it is cancelled, the same is true,
    and it ends then. The hosts that it has emptied so far stay as they are.
    """

    ROUTE = Route(Kind.ORDER, "keeper.requests", answer="campaign.found", by=("operator",))

    campaign: Annotated[Label, Meta(description="the campaign's name or id")]
    to: Literal["pause", "resume", "cancel"]
    for_user: UserName = ""


class AskCampaigns(StrictMessage, frozen=True, tag="campaign.query"):
    """Asks for a page of campaigns, the newest first, after the campaign `after`; those that go on, or with `ended` all of them. With
    `campaign`, only the one of this name or id, and a page of its hosts, in the order of their turns, after the host `after_host`.
    """

    ROUTE = Route(Kind.QUESTION, "keeper.questions", answer="campaign.found", by=("admin",))

    campaign: Label = ""
    ended: bool = False
    after: CampaignId | None = None
    after_host: ProviderId | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class CampaignsFound(AnswerMessage, frozen=True, tag="campaign.found"):
    """A page of campaigns, or one campaign with a page of its hosts. `next` or `next_host` is where the next page begins, null on the
    last one.
    """

    campaigns: tuple[CampaignState, ...]
    hosts: tuple[CampaignHost, ...] = ()
    next: CampaignId | None = None
    next_host: ProviderId | None = None


class AskCampaignPlan(StrictMessage, frozen=True, tag="campaign.plan.query"):
    """Asks what a campaign of this work would do now: which hosts, which guests, where they would go, what cannot move and why. Nothing
    is claimed or moved. At most 1000 guests are planned.
    """

    ROUTE = Route(Kind.QUESTION, "keeper.questions", answer="campaign.planned", by=("admin",))

    work: CampaignWork


class PlannedMovement(Value, frozen=True):
    """A guest, and the host to which it would go; without one, the reason why it would stay. A step of a balance has its `gain`; `live`: without
    a stop, by a copy of `memory_mb`.
    """

    instance: InstanceId
    name: Label = ""
    project: Label = ""
    host: Label = ""
    to: Label = ""
    reason: str = ""
    gain: Portion = 0.0
    memory_mb: Natural = 0
    live: bool = False


class CampaignPlanned(AnswerMessage, frozen=True, tag="campaign.planned"):
    """The plan of a campaign. Each of `hosts` says how many of its guests would move (`left`), and how many would `stay`. `fit` of all
    `guests` would find a place; `more`: there are others, which were not planned. `seconds` is the time that it would take at the
    rate of the latest movements, null if none has ended lately; `limit` names the bound for which it would wait most. A balance has
    `before` and `after`, the figures of its hosts now and after it.
    """

    hosts: tuple[CampaignHost, ...]
    guests: Natural = 0
    fit: Natural = 0
    movements: tuple[PlannedMovement, ...] = ()
    more: bool = False
    seconds: Natural | None = None
    limit: Label = ""
    before: BalanceFigures | None = None
    after: BalanceFigures | None = None


class AskKeepingWeeks(StrictMessage, frozen=True, tag="keeping.week.query"):
    """Asks what keepers have done by themselves in the last `weeks`."""

    ROUTE = Route(Kind.QUESTION, "keeper.questions", answer="keeping.week.found", by=("admin",))

    weeks: Annotated[int, Meta(ge=1, le=52)] = 12


class KeepingWeek(Value, frozen=True):
    """What keepers have done by themselves in one week, such as `2026-W49`. Of the hosts `lost` in it so many are `recovered` and so many were
    `left`; the others wait. From its last heartbeat until its guests were elsewhere a host took `seconds` (the median), and `seconds_most`.
    `moved` guests of theirs were built anew, and `stay` were not. The `balances` begun in it made `steps`, and gave some up; on average they
    were to gain so many percent (`promised`), and have (`reached`).
    """

    week: Label
    lost: Natural = 0
    recovered: Natural = 0
    left: Natural = 0
    seconds: Natural | None = None
    seconds_most: Natural | None = None
    moved: Natural = 0
    stay: Natural = 0
    balances: Natural = 0
    steps: Natural = 0
    given_up: Natural = 0
    promised: Portion | None = None
    reached: Portion | None = None


class KeepingWeeksFound(AnswerMessage, frozen=True, tag="keeping.week.found"):
    """The weeks in which anything was done, the latest first."""

    weeks: tuple[KeepingWeek, ...]


class CampaignChanged(Message, frozen=True, tag="campaign.changed"):
    """A campaign began, was paused, goes on, or ended: then `state` is its state now. Or its `host` came to another stage. It may be said
    more than once.
    """

    ROUTE = Route(Kind.EVENT, by=("keeper",), public=True)

    campaign: CampaignId
    state: CampaignState | None = None
    host: CampaignHost | None = None


# Movements.

# planned: it waits for its turn, for room or for a budget. granted: its order is on its way. moving: it goes on. done: it has left its
# host. given_up: it failed too often. withdrawn: nothing is to move any more, since its campaign ended or it has left by itself.
MovementLife = Literal["planned", "granted", "moving", "done", "given_up", "withdrawn"]


class Movement(Value, frozen=True):
    """The movement of one instance away from a host. `reason` says why it waits, was given up or withdrawn. `to` is the host that was chosen
    at the grant. `failures` counts its tries that failed. Those with the higher `priority` are granted first. With `together` it leaves
    with the other members of its `group` on that host. `epoch` is that of its host, if that was fenced. `wish` is the host of its step of
    a balance.
    """

    id: MovementId
    instance: InstanceId
    campaign: CampaignId
    cause: Label
    cell: Label
    host: Label
    kind: MoveKind = "live-migrate"
    life: MovementLife = "planned"
    name: Label = ""
    project: Label = ""
    group: GroupId | None = None
    together: bool = False
    priority: Integer = 0
    epoch: Counter | None = None
    place: Place = ""
    wish: Label = ""
    to: Label = ""
    to_place: Place = ""
    reason: str = ""
    failures: Natural = 0
    request_id: RequestId | None = None
    asked_at: Moment | None = None
    granted_at: Moment | None = None
    ended_at: Moment | None = None


class AskMovements(StrictMessage, frozen=True, tag="movement.query"):
    """Asks for a page of movements in the order of their ids, after `after`: those that go on, or with `ended` all of them.

    `campaign` (its name or id), `instance` and `host` limit the page to movements of these.
    """

    ROUTE = Route(Kind.QUESTION, "keeper.questions", answer="movement.found", by=("admin",))

    campaign: Label = ""
    instance: InstanceId | None = None
    host: Label = ""
    life: MovementLife | Literal[""] = ""
    ended: bool = False
    after: MovementId | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class MovementsFound(AnswerMessage, frozen=True, tag="movement.found"):
    """A page of movements. `next` is where the next page begins, null on the last page."""

    movements: tuple[Movement, ...]
    next: MovementId | None = None


class MovementChanged(Message, frozen=True, tag="movement.changed"):
    """A movement was granted, or ended. It may be said more than once."""

    ROUTE = Route(Kind.EVENT, by=("keeper",), public=True)

    movement: Movement
