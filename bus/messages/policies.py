"""Policies say what keepers do by themselves. Without any policy they only do what persons order."""

from typing import Annotated, Literal

from msgspec import Meta

from bus.message import AnswerMessage, Kind, Route, StrictMessage
from engine.flavors import InstanceId
from engine.goals import BalanceGoal
from engine.inventories import Integer, Label, Moment, UserName, Value
from engine.places import Level

PolicyScope = Literal["cloud", "cell", "domain", "aggregate", "project", "flavor"]
# evacuate: built anew elsewhere. restart: started again when the host is back. leave: neither.
LostGuests = Literal["evacuate", "restart", "leave"]


class KeepingPolicy(Value, frozen=True):
    """What keepers do for the guests and hosts `of` this cell, domain (`dc1/hall2`), aggregate, project or flavor, or of the whole cloud. The
    next wider policy says what this one leaves out (null). From the widest to the narrowest: cloud, cell, domain, aggregate, project, flavor;
    of domains the longer path is narrower, and of two aggregates of one host the first by name counts.

    A host is lost if it was not heard for `after_s` seconds, and the conductors of its cell do not hear it either. Then it is switched off
    by the `fence`, a program in the keepers' folder of hooks, within `fence_s` seconds; `unfenced` says why that need not be (such
    as leases on its storage). With neither, a person is asked whether it is off. `guests` says what becomes of the guests that were there.

    If more than `lost_max` hosts of a domain of this `level` (0: of a cell) are lost within an hour, or all of the smallest domain that has
    others, a person is asked about all of them, once. With `rehearse` keepers only note what they would do. A guest that dies while its
    host lives is started again up to `restarts` times, with longer and longer pauses.

    Projects and flavors have only `guests` and `restarts`.

    Of the cloud, a cell or a domain: every `every_s` seconds keepers make a plan of `balance` for its hosts, and carry it out if it comes nearer
    to that goal by `gain_min` percent. A guest that has moved within `rest_s` seconds stays.
    """

    scope: PolicyScope
    of: Label = ""
    guests: LostGuests | None = None
    restarts: Integer | None = None
    after_s: Integer | None = None
    fence: Label | None = None
    fence_s: Integer | None = None
    unfenced: Label | None = None
    lost_max: Integer | None = None
    level: Level | None = None
    rehearse: bool | None = None
    balance: BalanceGoal | None = None
    every_s: Integer | None = None
    gain_min: Integer | None = None
    rest_s: Integer | None = None


class PolicyState(Value, frozen=True):
    """A policy; `by` is the user that set it. `problem`: what keeps the keeper that answers from following it."""

    policy: KeepingPolicy
    by: Label = ""
    set_at: Moment | None = None
    problem: str = ""


class PolicyValue(Value, frozen=True):
    """What counts for a guest: the `value` of this `field` (as text), and the policy that says it; without one, the default."""

    field: Label
    value: str
    scope: PolicyScope | Literal[""] = ""
    of: Label = ""


class SetPolicy(StrictMessage, frozen=True, tag="policy.set"):
    """Create this policy, or replace the one of its scope and `of`. It counts from the next host on that is lost."""

    ROUTE = Route(Kind.ORDER, "keeper.requests", answer="policy.found", by=("operator",))

    policy: KeepingPolicy
    for_user: UserName = ""


class DeletePolicy(StrictMessage, frozen=True, tag="policy.delete"):
    """Delete the policy of this scope and `of`. The answer has it; it is empty if there was none."""

    ROUTE = Route(Kind.ORDER, "keeper.requests", answer="policy.found", by=("operator",))

    scope: PolicyScope
    of: Label = ""
    for_user: UserName = ""


class AskPolicies(StrictMessage, frozen=True, tag="policy.query"):
    """Asks for all policies, the widest first; or with `instance` for what counts for this one."""

    ROUTE = Route(Kind.QUESTION, "keeper.questions", answer="policy.found", by=("admin",))

    instance: Annotated[InstanceId | None, Meta(description="an instance's id")] = None


class PoliciesFound(AnswerMessage, frozen=True, tag="policy.found"):
    """All policies, or those that were set or deleted. `counts` is what counts for the instance that was asked for; empty if there is no such
    instance.
    """

    policies: tuple[PolicyState, ...]
    counts: tuple[PolicyValue, ...] = ()


# So many policies may be set: they fit into one answer.
POLICIES_MAX = 500
