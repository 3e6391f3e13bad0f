"""Questions about hosts for which nothing is claimed: what would fit where, why a host does not qualify, why a past request
got its host, which capabilities hosts have.
"""

from typing import Annotated

from msgspec import Meta

from bus.message import AnswerMessage, Kind, ProjectMessage, Route, StrictMessage
from bus.messages.build import BuildInstance, InstanceState
from engine.flavors import InstanceId, RequestId
from engine.inventories import GroupId, Integer, Label, Moment, Natural, ProviderId, Value
from engine.places import Place
from engine.refusals import (
    ExhaustedPool,
    HostVerdict,
    NoValidHost,
    PlannedCell,
    PlannedFlavor,
    QuotaRoom,
    Relaxation,
)


class AskPlan(ProjectMessage, frozen=True, tag="plan.query"):
    """Asks where instances of this request would fit now. Nothing is claimed or written.

    The request may lack its `request_id`. `count` and other fields that do not concern hosts have no effect. With
    `project`, the request is one of that project. Without it, of any project, which needs the right to all of them.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="plan.found", by=("application",))

    request: BuildInstance


class PlanFound(AnswerMessage, frozen=True, tag="plan.found"):
    """The answer to a plan. `qualify` is how many hosts the filters leave, and `funnel` says what each filter removed.

    `fit` is how many more instances fit on the hosts that qualify. If `is_cut` is set, more may fit: to count all of them
    would have cost too much. `quota` is how many more its project's quota allows; null if no limit concerns them.

    If the request accepts several flavors, these fields are about the best one, `flavor`, and `alternatives` are the others in
    their order. Each flavor is planned alone, so two of them may count the same room. An instance gets the first one that fits.
    """

    qualify: Natural
    fit: Natural
    is_cut: bool
    cells: tuple[PlannedCell, ...]
    funnel: NoValidHost
    relaxations: tuple[Relaxation, ...] = ()
    pools: tuple[ExhaustedPool, ...] = ()
    quota: QuotaRoom | None = None
    flavor: Label = ""
    alternatives: tuple[PlannedFlavor, ...] = ()


class AskReasons(StrictMessage, frozen=True, tag="reasons.query"):
    """Asks for a page of verdicts on hosts for this request, in the order of the hosts' names, after the name `after`.

    With `step`, only for the hosts that this step of the funnel removes; `qualify` stands for the hosts that no step
    removes.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="reasons.found", by=("admin",))

    request: BuildInstance
    step: Label = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class ReasonsFound(AnswerMessage, frozen=True, tag="reasons.found"):
    """A page of verdicts on hosts. `next` is the name after which the next page begins, empty on the last page."""

    hosts: tuple[HostVerdict, ...]
    next: Label = ""


class AskDrain(StrictMessage, frozen=True, tag="drain.query"):
    """Asks whether the instances of this host would fit on other hosts of its cell, all together: an instance moves only
    within its cell. Nothing is claimed or moved. At most 200 instances are planned.

    With `instances`, these are planned in place of the host's, as if all left their hosts at once: none of them goes to a host that one of
    them leaves. `wishes` has for each of them the host to which it is to go, empty for any. `evacuate`: their hosts are down. None goes to a host whose id is in `avoid`, and if there are any in `to`, all go to these. A
    host has its cell before it (`c1/h1`) if several cells have its name.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="drain.found", by=("admin", "keeper"))

    host: Label = ""
    instances: Annotated[tuple[InstanceId, ...], Meta(max_length=200)] = ()
    wishes: Annotated[tuple[Label, ...], Meta(max_length=200)] = ()
    avoid: Annotated[tuple[ProviderId, ...], Meta(max_length=5000)] = ()
    to: Annotated[tuple[Label, ...], Meta(max_length=1000)] = ()
    evacuate: bool = False


class DrainedInstance(Value, frozen=True):
    """An instance and the host of its cell on which it would fit; without such a host, the reason. It begins with `busy: ` if the instance
    cannot move now, whatever room there is, and that may pass. Members of an affinity group that leave their host together have this `group`. `place` is
    that of the host `to`.
    """

    id: InstanceId
    name: Label = ""
    project: Label = ""
    to: Label = ""
    cell: Label = ""
    reason: str = ""
    group: GroupId | None = None
    place: Place = ""


class DrainFound(AnswerMessage, frozen=True, tag="drain.found"):
    """Whether the instances of a host would fit elsewhere: `fit` of them would.

    `more` says that the host has more instances than were planned.
    """

    host: Label
    fit: Natural
    instances: tuple[DrainedInstance, ...]
    more: bool = False


class AskExplanation(ProjectMessage, frozen=True, tag="explain.query"):
    """Asks how the hosts of instances were chosen, or why none was: of all instances of a request, or of one instance.

    With `plan_now`, the answer also has a plan for the same needs at this moment. Pages are in the order of ids, and
    begin after the id `after`. With `project`, only instances of that project. Without it, of all projects, which
    needs the right to all of them.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="explain.found", by=("application",))

    request_id: RequestId | None = None
    instance: InstanceId | None = None
    plan_now: bool = False
    after: InstanceId | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 50


class HostChoice(Value, frozen=True):
    """A choice of a host: `qualified` of `hosts` passed all filters, and `chosen` was the best of them.

    `what` is the order that it was made for: `boot`, or the kind of a move; then `request_id` is the id of the move's request. Hosts
    with several providers count as qualified if they seem to have room: only the best of them are searched. Both numbers are
    0 if an earlier try of the request had made the choice.
    """

    chosen_at: Moment | None = None
    hosts: Natural = 0
    qualified: Natural = 0
    chosen: Label = ""
    alternates: tuple[str, ...] = ()
    what: Label = "boot"
    request_id: RequestId | None = None


class Explanation(HostChoice, frozen=True, kw_only=True):
    """The last choice of a host for an instance: that of its last move that chose one, or else that of its boot.

    After such a move, `boot` has the first choice, and `by` says who ordered the move, as the history does; only the answer about one instance
    has it. If no host was found for the boot, `state` has the funnel, the claims
    that were refused, and the attempts that failed.
    """

    state: InstanceState
    boot: HostChoice | None = None
    by: Label = ""


class ExplanationsFound(AnswerMessage, frozen=True, tag="explain.found"):
    """A page of explanations. `next` is where the next page begins, null on the last page.

    `plan` is null unless it was asked for and the needs of the request are known.
    """

    explanations: tuple[Explanation, ...]
    plan: PlanFound | None = None
    next: InstanceId | None = None


class AskCapabilities(StrictMessage, frozen=True, tag="capability.query"):
    """Asks for the hosts that have a capability: a trait, a resource class, or a fact such as `zone`.

    `having` is its name; with `value`, only the hosts with this value are meant. Without `having`, it asks which
    capabilities there are, and on how many hosts. Pages go on after `after`, the name of a host or of a capability.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="capability.found", by=("admin",))

    having: Label = ""
    value: Label = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class Capability(Value, frozen=True):
    """Something that hosts have, and on how many hosts. `kind` is trait, class or fact.

    A trait has no value. The value of a class is the capacity of a host. `values` is how many different values there are
    if only one of them is shown.
    """

    name: str
    kind: str
    value: str
    hosts: Natural
    values: Natural = 1


class HostHaving(Value, frozen=True):
    """A host that has the capability that was asked for. `free` is set only for resource classes."""

    host: str
    cell: str
    value: str
    free: Integer | None = None


class CapabilitiesFound(AnswerMessage, frozen=True, tag="capability.found"):
    """The answer to `AskCapabilities`: about one capability, or with a page of all capabilities.

    About one: its most frequent values, and a page of the hosts that have it. On a page of all, each capability comes
    with its most frequent value. `next` is where the next page begins, empty on the last page.
    """

    capabilities: tuple[Capability, ...]
    hosts: tuple[HostHaving, ...] = ()
    next: Label = ""
