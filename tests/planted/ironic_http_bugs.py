"""Planted bugs in the client of Ironic's API, and in the steps that it is used for."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, aclosing
from typing import Any

from msgspec import structs

from ironic_sync import deploying, rest
from ironic_sync.core import deploying as steps
from ironic_sync.core.node import InterfaceCheck
from ironic_sync.deploying import Deployer
from ironic_sync.rest import FIELDS, HttpIronicApi, _IronicVersion, refusal_of
from kit.errors import Unavailable
from kit.keystone import KeystoneTokens
from kit.login import NOT_FOUND, RestAnswer
from kit.rest import RestClient
from tests.planted.replacing import PlantedBug, replaced, replaced_in


def later_pages_not_read() -> AbstractContextManager[None]:
    """Only the first page of nodes is read."""

    def planted(real: Any) -> Any:
        async def pages(self: Any) -> AsyncIterator[Any]:
            async with aclosing(real(self)) as found:
                yield await anext(found)

        return pages

    return replaced(HttpIronicApi, "pages", planted)


def unreadable_nodes_left_out() -> AbstractContextManager[None]:
    """A page does not tell of the nodes on it that cannot be read."""
    return replaced(
        rest, "read_page", lambda real: lambda listed: structs.replace(real(listed), unreadable=())
    )


def any_404_believed() -> AbstractContextManager[None]:
    """A node is missing by any answer 404, also a proxy's."""
    return replaced(rest, "is_missing", lambda _real: lambda answer: answer.status == NOT_FOUND)


def lock_taken_for_a_refusal() -> AbstractContextManager[None]:
    """A conflict is a refusal, unless Ironic's words say that the node is locked."""

    def planted(_real: Any) -> Any:
        async def is_locked(_self: Any, _node: Any, conflict: Any) -> bool:
            return "locked" in conflict.message.lower()

        return is_locked

    return replaced(HttpIronicApi, "_is_locked", planted)


def lost_answers_repeat_orders() -> AbstractContextManager[None]:
    """An order is sent again when its answer was lost."""
    return replaced(
        RestClient,
        "again_while",
        lambda real: lambda self, _kind, once: real(self, Unavailable, once),
    )


def orders_after_the_lease() -> AbstractContextManager[None]:
    """The client does not ask before an order whether the node is still this daemon's."""
    return replaced(HttpIronicApi, "order_only_if", lambda _real: lambda _self, _may_act_on: None)


def young_fields_asked() -> AbstractContextManager[None]:
    """Nodes are asked for fields that the version has not."""

    def fields(self: Any) -> list[str]:
        return [each for each in FIELDS if each != "shard" or self._has_shards]

    return replaced(_IronicVersion, "fields", lambda _real: property(fields))


def shards_not_needed() -> AbstractContextManager[None]:
    """An Ironic that knows no shards is taken, though shards say the cells of nodes."""

    def planted(real: Any) -> Any:
        def refused(self: Any, answer: Any, name: str) -> Any:
            self._least = rest.MINOR_LEAST
            return real(self, answer, name)

        return refused

    return replaced(_IronicVersion, "refused", planted)


def drive_of_a_rebuild_dropped() -> AbstractContextManager[None]:
    """A rebuild is ordered without its config drive."""

    def planted(real: Any) -> Any:
        async def set_provision_state(self: Any, node: Any, target: str, **others: Any) -> Any:
            if target == "rebuild":
                others.pop("configdrive", None)
            return await real(self, node, target, **others)

        return set_provision_state

    return replaced(HttpIronicApi, "set_provision_state", planted)


def port_not_quoted() -> AbstractContextManager[None]:
    """The id of a port is part of an address as it is."""

    def planted(real: Any) -> Any:
        async def detach_vif(self: Any, node: Any, vif: str) -> Any:
            is_refused = not vif.strip(".")
            return await (
                real(self, node, vif) if is_refused else self._order("DELETE", node, f"/vifs/{vif}")
            )

        return detach_vif

    return replaced(HttpIronicApi, "detach_vif", planted)


def later_changes_missed() -> AbstractContextManager[None]:
    """Of all nodes that changed since the last look, only the first page is read."""

    def planted(real: Any) -> Any:
        async def changed_since(self: Any, *known: Any) -> AsyncIterator[Any]:
            async with aclosing(real(self, *known)) as found:
                yield await anext(found)

        return changed_since

    return replaced(HttpIronicApi, "changed_since", planted)


def broken_power_deployed() -> AbstractContextManager[None]:
    """A node is deployed although its power interface does not validate."""

    def planted(real: Any) -> Any:
        return lambda checks: real({**checks, "power": InterfaceCheck(result=True)})

    return replaced_in((steps, deploying), "why_invalid", planted)


def reason_not_told() -> AbstractContextManager[None]:
    """The words of an error are its status."""
    return replaced(RestAnswer, "message", lambda _real: property(lambda self: str(self.status)))


def revoked_token_sent_again() -> AbstractContextManager[None]:
    """A token that the service has refused is sent again."""
    return replaced(KeystoneTokens, "forget", lambda _real: lambda _self, _token: None)


def answer_without_limit() -> AbstractContextManager[None]:
    """An answer is read to its end, however large it is."""

    def planted(_real: Any) -> Any:
        async def bounded(_self: Any, response: Any) -> Any:
            return await response.aread()

        return bounded

    return replaced(RestClient, "_bounded", planted)


def lost_nodes_worked_on() -> AbstractContextManager[None]:
    """A daemon goes on with the deploy of a node that another daemon has by now."""
    return replaced(Deployer, "lost", lambda _real: lambda _self, _nodes: None)


def maintenance_without_reason() -> AbstractContextManager[None]:
    """The reason of a maintenance is not sent."""

    def planted(real: Any) -> Any:
        async def set_maintenance(self: Any, node: Any, _reason: str = "", *, is_on: bool = True) -> Any:
            return await real(self, node, is_on=is_on)

        return set_maintenance

    return replaced(HttpIronicApi, "set_maintenance", planted)


def soft_power_hard() -> AbstractContextManager[None]:
    """A node that is to shut down is switched off."""

    def planted(real: Any) -> Any:
        async def set_power_state(self: Any, node: Any, target: str) -> Any:
            return await real(self, node, target.removeprefix("soft "))

        return set_power_state

    return replaced(HttpIronicApi, "set_power_state", planted)


def patch_of_a_proxy_believed() -> AbstractContextManager[None]:
    """A change of a node counts as made by any answer that is no error."""

    def planted(_real: Any) -> Any:
        async def patch(self: Any, node: Any, changes: Any) -> Any:
            return refusal_of(await self._answer_to("PATCH", node, "", changes))

        return patch

    return replaced(HttpIronicApi, "patch", planted)


BUGS: dict[str, PlantedBug] = {
    "nodes beyond the first page are not read": later_pages_not_read,
    "a node that cannot be read counts as missing": unreadable_nodes_left_out,
    "an answer of a proxy removes a node": any_404_believed,
    "a node's lock counts as a refusal": lock_taken_for_a_refusal,
    "an order to Ironic is repeated when its answer is lost": lost_answers_repeat_orders,
    "a node is changed after its lease": orders_after_the_lease,
    "an old Ironic is asked for fields that it has not": young_fields_asked,
    "an Ironic without shards is taken where shards say the cell": shards_not_needed,
    "a node is rebuilt without its config drive": drive_of_a_rebuild_dropped,
    "the id of a port leads to another address": port_not_quoted,
    "of several nodes that changed one is noticed": later_changes_missed,
    "a node with broken power is deployed": broken_power_deployed,
    "Ironic's reason is not told": reason_not_told,
    "a token that was refused is sent again": revoked_token_sent_again,
    "an answer of any size is read": answer_without_limit,
    "a daemon works on a node that it has lost": lost_nodes_worked_on,
    "a maintenance has no reason": maintenance_without_reason,
    "a node that is to shut down is switched off": soft_power_hard,
    "a change of a node is believed without Ironic's answer": patch_of_a_proxy_believed,
}
