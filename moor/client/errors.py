"""The errors that the client raises. Their fields are for programs; their texts say the same to people.

ClientError
├── Rejected            a scheduler or placement refused the order or question: `field`, `value` and `reason`
│   ├── NotSendable         the client did not send it, since no receiver could read it
│   └── Ambiguous           a name, or the beginning of an id, may mean several: `candidates`
├── NotFound            there is no such instance, group, host, flavor or the like, so nothing was done
├── NoConsoleFound      the console of an instance cannot be read: `reason` says why
├── NotInTime           no answer, or no end, within the time; the order stays, and may still be done
├── BrokerAway          there is no connection to the broker; the order may have been taken, or not
├── BrokerRefused       the broker refuses the request
│   └── NotAllowed          the user has no right to it
└── NotDone             an order has ended, and what it ordered has not come about: `states` say why
    └── NoHostFound         no host was found for an instance; `funnel` says why

`request_id` is that of the order, if it has one. To send the order again with the same id is safe: it is done once.
"""

import re
from collections.abc import Iterable, Sequence
from uuid import UUID

from bus.messages import TYPES
from bus.messages.build import InstanceState
from engine.flavors import RequestId
from engine.inventories import near_in_words
from engine.refusals import NoValidHost


class ClientError(Exception):
    """The base of all errors of the client."""

    request_id: RequestId | None = None


class Rejected(ClientError):
    """The order or question is refused, and nothing was done. `field` and `value` say what is wrong, `reason` why."""

    def __init__(
        self, field: str, value: str, reason: str, request_id: RequestId | None = None, hint: str = ""
    ) -> None:
        super().__init__(f"rejected: {field} is {value!r}: {reason}{hint}")
        self.field = field
        self.value = value
        self.reason = reason
        self.request_id = request_id


class NotSendable(Rejected):
    """No receiver could decode the message, so it was not sent."""

    def __init__(self, field: str, value: str, reason: str, request_id: RequestId | None = None) -> None:
        super().__init__(field, value, reason, request_id)
        self.args = (f"{field} is {value!r}, and cannot be sent: {reason}",)


class Ambiguous(Rejected):
    """A text may name several things, so nothing was done. `candidates` are the first of them, each in words."""

    def __init__(self, what: str, text: str, candidates: Sequence[str], *, more: bool) -> None:
        super().__init__(what, text, "several have this name, or ids that begin so")
        shown = "".join(f"\n  {line}" for line in candidates) + ("\n  and others" if more else "")
        self.args = (f"{what} {text!r} may be any of these, so nothing was done; give the whole id:{shown}",)
        self.candidates = tuple(candidates)


class NotFound(ClientError):
    """There is no `what` with this name or id, so nothing was done. `near` are existing names that are like it."""

    def __init__(self, what: str, *names: UUID | str, near: Sequence[str] = ()) -> None:
        shown = ", ".join(repr(each) if isinstance(each, str) else str(each) for each in names)
        super().__init__(f"there is no {what} {shown}, so nothing was done{near_in_words(near)}")
        self.what = what
        self.name = ", ".join(map(str, names))
        self.near = tuple(near)


class NoConsoleFound(ClientError):
    """The console of an instance cannot be read; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no console: {reason}")
        self.reason = reason


class NotInTime(ClientError):
    """Something has not come about within `seconds`. `states` are the instances as they were last known."""

    def __init__(
        self,
        what: str,
        seconds: float,
        states: Sequence[InstanceState] = (),
        request_id: RequestId | None = None,
    ) -> None:
        super().__init__(f"{what} within {seconds:g} s")
        self.seconds = seconds
        self.states = tuple(states)
        self.request_id = request_id


class BrokerAway(ClientError):
    """There is no connection to the broker. A scheduler may have taken an order that was sent before."""

    def __init__(self, reason: str, request_id: RequestId | None = None) -> None:
        super().__init__(f"no broker: {reason}")
        self.reason = reason
        self.request_id = request_id


class BrokerRefused(ClientError):
    """The broker refuses the request: an exchange or queue is not declared, say."""

    def __init__(self, reason: str, request_id: RequestId | None = None) -> None:
        super().__init__(f"the broker refused: {reason}")
        self.reason = reason
        self.request_id = request_id


class NotAllowed(BrokerRefused):
    """The broker's user has no right to send this message, to hear these events, or to connect."""

    def __init__(self, reason: str, request_id: RequestId | None = None) -> None:
        super().__init__(f"{reason}{what_to_do(reason)}", request_id)


# RabbitMQ's words for a key, a queue or an exchange to which an application has no right.
_REFUSED = re.compile(r"access to (?:topic )?'?([\w.*#-]+)'? .*for user '?moor-app-", re.DOTALL)


def what_to_do(refused: str) -> str:
    """What an application's user can do who is refused with these words; empty if they are of something else."""
    found = _REFUSED.search(refused)
    if found is None:
        return ""
    kind = TYPES.get(found[1]) or TYPES.get(found[1].rpartition(".")[0])
    by = () if kind is None else kind.ROUTE.by
    if "application" in by:
        return "; name a project of this application, by --project or MOOR_PROJECT"
    who = "operators and admin applications" if "admin" in by else "operators"
    return f"; this is for {who} only: ask one, or set MOOR_BUS_URL to the URL of such a user"


class NotDone(ClientError):
    """An order has ended, and what it ordered has not come about. `states` are the instances concerned."""

    def __init__(self, states: Iterable[InstanceState], reason: str, request_id: RequestId) -> None:
        super().__init__(reason)
        self.states = tuple(states)
        self.reason = reason
        self.request_id = request_id


class NoHostFound(NotDone):
    """No host was found for an instance. `funnel` says how many hosts each filter removed, and which were nearest."""

    def __init__(
        self, states: Iterable[InstanceState], reason: str, request_id: RequestId, funnel: NoValidHost
    ) -> None:
        removed = ", ".join(f"{each.removed} removed by {each.step}" for each in funnel.steps)
        super().__init__(states, f"{reason} ({funnel.hosts} hosts: {removed or 'none'})", request_id)
        self.funnel = funnel
