"""Planted bugs in the client of Ironic's API, and in the steps that it is used for."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any

from msgspec import structs

from ironic_sync import deploying, rest, wiring
from ironic_sync.core import deploying as steps
from ironic_sync.core.node import InterfaceCheck
from ironic_sync.deploying import Deployer
from ironic_sync.rest import FIELDS, HttpIronicApi, _IronicVersion, refusal_of
from kit.errors import Unavailable
from kit.keystone import KeystoneTokens
from kit.login import NOT_FOUND, RestAnswer
from kit.rest import RestClient
from tests.planted.replacing import BARE_METAL, planted, planted_as, planted_by, replaced, rewritten


# Only the first page of nodes is read.
@planted("nodes beyond the first page are not read", HttpIronicApi, "pages", harm="destroyed")
async def later_pages_not_read(real: Any, self: Any) -> AsyncIterator[Any]:
    async with aclosing(real(self)) as found:
        yield await anext(found)


# A page does not tell of the nodes on it that cannot be read.
planted_by("a node that cannot be read counts as missing", rest, "read_page", harm="destroyed")(
    lambda real: lambda listed: structs.replace(real(listed), unreadable=())
)


# A node is missing by any answer 404, also a proxy's.
planted_by("an answer of a proxy removes a node", rest, "is_missing", harm="destroyed")(
    lambda _real: lambda answer: answer.status == NOT_FOUND
)


# A conflict is a refusal, unless Ironic's words say that the node is locked.
@planted("a node's lock counts as a refusal", HttpIronicApi, "_is_locked")
async def lock_taken_for_a_refusal(_real: Any, _self: Any, _node: Any, conflict: Any) -> bool:
    return "locked" in conflict.message.lower()


# An order is sent again when its answer was lost.
planted_by(
    "an order to Ironic is repeated when its answer is lost", RestClient, "again_while", harm="doubled"
)(lambda real: lambda self, _kind, once: real(self, Unavailable, once))


@planted_as("a node is changed after its lease", world=BARE_METAL, harm="doubled")
@contextmanager
def changed_after_lease() -> Iterator[None]:
    """The client does not ask before an order whether the node is still this daemon's, and no daemon tells it to."""
    with (
        replaced(HttpIronicApi, "order_only_if", lambda _real: lambda _self, _may_act_on: None),
        rewritten(wiring, "ironic_parts", "api.order_only_if(membership.may_act_on)", "pass"),
    ):
        yield


@planted_as("an old Ironic is asked for fields that it has not")
def young_fields_asked() -> AbstractContextManager[None]:
    """Nodes are asked for fields that the version has not."""

    def fields(self: Any) -> list[str]:
        return [each for each in FIELDS if each != "shard" or self._has_shards]

    return replaced(_IronicVersion, "fields", lambda _real: property(fields))


# An Ironic that knows no shards is taken, though shards say the cells of nodes.
@planted("an Ironic without shards is taken where shards say the cell", _IronicVersion, "refused")
def shards_not_needed(real: Any, self: Any, answer: Any, name: str) -> Any:
    self._least = rest.MINOR_LEAST
    return real(self, answer, name)


# A rebuild is ordered without its config drive.
@planted("a node is rebuilt without its config drive", HttpIronicApi, "set_provision_state", harm="lost")
async def drive_of_a_rebuild_dropped(real: Any, self: Any, node: Any, target: str, **others: Any) -> Any:
    if target == "rebuild":
        others.pop("configdrive", None)
    return await real(self, node, target, **others)


# The id of a port is part of an address as it is.
@planted("the id of a port leads to another address", HttpIronicApi, "detach_vif", harm="unauthorised")
async def port_not_quoted(real: Any, self: Any, node: Any, vif: str) -> Any:
    is_refused = not vif.strip(".")
    return await (real(self, node, vif) if is_refused else self._order("DELETE", node, f"/vifs/{vif}"))


# Of all nodes that changed since the last look, only the first page is read.
@planted("of several nodes that changed one is noticed", HttpIronicApi, "changed_since", harm="lost")
async def later_changes_missed(real: Any, self: Any, *known: Any) -> AsyncIterator[Any]:
    async with aclosing(real(self, *known)) as found:
        yield await anext(found)


# A node is deployed although its power interface does not validate.
planted_by("a node with broken power is deployed", (steps, deploying), "why_invalid")(
    lambda real: lambda checks: real({**checks, "power": InterfaceCheck(result=True)})
)


# The words of an error are its status.
planted_by("Ironic's reason is not told", RestAnswer, "message")(
    lambda _real: property(lambda self: str(self.status))
)


# A token that the service has refused is sent again.
planted_by("a token that was refused is sent again", KeystoneTokens, "forget")(
    lambda _real: lambda _self, _token: None
)


# An answer is read to its end, however large it is.
@planted("an answer of any size is read", RestClient, "_bounded")
async def answer_without_limit(_real: Any, _self: Any, response: Any) -> Any:
    return await response.aread()


# A daemon goes on with the deploy of a node that another daemon has by now.
planted_by("a daemon works on a node that it has lost", Deployer, "lost", harm="doubled")(
    lambda _real: lambda _self, _nodes: None
)


# The reason of a maintenance is not sent.
@planted("a maintenance has no reason", HttpIronicApi, "set_maintenance")
async def maintenance_without_reason(
    real: Any, self: Any, node: Any, _reason: str = "", *, is_on: bool = True
) -> Any:
    return await real(self, node, is_on=is_on)


# A node that is to shut down is switched off.
@planted("a node that is to shut down is switched off", HttpIronicApi, "set_power_state", harm="destroyed")
async def soft_power_hard(real: Any, self: Any, node: Any, target: str) -> Any:
    return await real(self, node, target.removeprefix("soft "))


# A change of a node counts as made by any answer that is no error.
@planted("a change of a node is believed without Ironic's answer", HttpIronicApi, "patch")
async def patch_of_a_proxy_believed(_real: Any, self: Any, node: Any, changes: Any) -> Any:
    return refusal_of(await self._answer_to("PATCH", node, "", changes))
