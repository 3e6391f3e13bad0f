"""Questions about hosts for which nothing is claimed: what would fit where, why a host does not qualify, why a past request
got its host, which capabilities hosts have.
"""

from typing import Annotated

from msgspec import Meta

from bus.message import Message, Project, StrictMessage
from bus.messages.build import BuildInstance, NoValidHost
from bus.messages.placement import Label, Natural, Value


class AskPlan(StrictMessage, frozen=True, tag="plan.query"):
    """Asks where instances of this request would fit now. Nothing is claimed or written. The request may lack its
    `request_id`; `count` and other fields that say nothing about hosts change nothing.

    With `project`, the request is one of that project. Without it, of any project, which needs the right to all of them.
    """

    request: BuildInstance
    project: Project = ""


class PlannedCell(Value, frozen=True):
    """A cell in a plan: how many of its hosts qualify, and how many more instances fit there."""

    cell: str
    hosts: Natural
    fit: Natural


class Relaxation(Value, frozen=True):
    """A smaller demand, and how many hosts would qualify with it."""

    change: str
    hosts: Natural


class ExhaustedPool(Value, frozen=True):
    """A sharing provider that ran out: so many hosts would take this class from it alone."""

    pool: str
    resource: str
    asked: Natural
    free: int
    capacity: Natural
    hosts: Natural


class PlanFound(Message, frozen=True, tag="plan.found"):
    """`funnel`: the hosts that its steps leave qualify, `qualify` in number. `fit` is how many more instances fit on
    these, and more may fit if `is_cut`: counting on to the end would have cost too much.
    """

    qualify: Natural
    fit: Natural
    is_cut: bool
    cells: tuple[PlannedCell, ...]
    funnel: NoValidHost
    relaxations: tuple[Relaxation, ...] = ()
    pools: tuple[ExhaustedPool, ...] = ()


class AskReasons(StrictMessage, frozen=True, tag="reasons.query"):
    """Asks for the verdict on every host for this request, in the order of their names, after `after`. With `step`, only
    for hosts that this step of the funnel removes; `qualify` stands for the hosts that no step removes.
    """

    request: BuildInstance
    step: Label = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class HostVerdict(Value, frozen=True):
    """The first step that removes a host, and why. Without a step the host qualifies, and `fit` more instances fit."""

    host: str
    cell: str
    fit: Natural = 0
    step: str = ""
    reason: str = ""


class ReasonsFound(Message, frozen=True, tag="reasons.found"):
    """`next` starts the next page, empty on the last one."""

    hosts: tuple[HostVerdict, ...]
    next: Label = ""


class AskCapabilities(StrictMessage, frozen=True, tag="capability.query"):
    """Asks which hosts have this: a trait, a resource class, or a fact such as `zone`; with `value`, only those with this
    value. Without `having`: what there is, and on how many hosts. Pages go on after `after`, a host's name or a capability's.
    """

    having: Label = ""
    value: Label = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class Capability(Value, frozen=True):
    """`kind` is trait, class or fact. A trait has no value; that of a class is the host's capacity. `values` is how many
    values there are, where only one is shown.
    """

    name: str
    kind: str
    value: str
    hosts: Natural
    values: Natural = 1


class HostHaving(Value, frozen=True):
    """A host that has what was asked for. `free` is set for resource classes."""

    host: str
    cell: str
    value: str
    free: int | None = None


class CapabilitiesFound(Message, frozen=True, tag="capability.found"):
    """With `having`: its most frequent values, and a page of hosts. Without it: a page of capabilities, each with its most
    frequent value. `next` starts the next page, empty on the last one.
    """

    capabilities: tuple[Capability, ...]
    hosts: tuple[HostHaving, ...] = ()
    next: Label = ""
