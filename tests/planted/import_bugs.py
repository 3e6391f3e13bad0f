"""Planted bugs in imports from a Nova: what is taken over, what is compared, and the way back."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from bus.messages.placement import ReleaseClaim
from bus.workers.handling import Tell
from cell_conductor import hosts as conductor_hosts
from cell_conductor.core import decide, transition
from nova_bridge.importing import command, handing_over, judging, shared, shares
from nova_bridge.importing.handing_over import Cloud
from nova_bridge.importing.reading import NovaDatabases
from nova_bridge.importing.shares import HostTree
from scheduler_worker.core.instances import lifecycle
from scheduler_worker.core.instances.rows import FIRST_ATTEMPT
from scheduler_worker.requests import adopting
from scheduler_worker.requests.adopting import InstanceAdopter
from tests.planted.replacing import PlantedBug, replaced, replaced_in


def running_compute_not_noticed() -> AbstractContextManager[None]:
    """A disabled service is enough: nobody looks whether its nova-compute was stopped."""

    def planted(real: Any) -> Any:
        def why_not_fenced(host: Any, now: Any) -> Any:
            service = host.service
            stopped = None if service is None else structs.replace(service, seen_at=None)
            return real(structs.replace(host, service=stopped), now)

        return why_not_fenced

    return replaced_in((judging, handing_over), "why_not_fenced", planted)


def migrations_not_waited_for() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        return lambda host: real(structs.replace(host, migrations=()))

    return replaced_in((judging, handing_over), "what_is_under_way", planted)


def instance_of_two_cells_taken() -> AbstractContextManager[None]:
    def planted(_real: Any) -> Any:
        async def duplicates(self: Any) -> list[str]:  # noqa: ARG001
            return []

        return duplicates

    return replaced(NovaDatabases, "duplicates", planted)


def other_share_not_told() -> AbstractContextManager[None]:
    """An instance that holds other amounts here counts as equal."""

    def planted(real: Any) -> Any:
        def differences_of(*values: Any, is_asked: bool) -> Any:
            return [each for each in real(*values, is_asked=is_asked) if "it holds" not in each]

        return differences_of

    return replaced_in((judging, handing_over), "differences_of", planted)


def needs_not_added_up() -> AbstractContextManager[None]:
    """Each instance of a host is judged as if it was the only one."""
    return replaced(HostTree, "take", lambda _real: lambda self, amounts: None)  # noqa: ARG005


def large_pages_forgotten() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def share_of(instance: Any, wanted: Any, cells: Any, devices: Any, tree: Any) -> Any:
            small = [structs.replace(each, page_kib=None) for each in cells]
            return real(instance, wanted, small, devices, tree)

        return share_of

    return replaced_in((shares, judging), "share_of", planted)


def _orders_without(**fields: Any) -> AbstractContextManager[None]:
    """These fields of each instance that is taken over."""

    def planted(real: Any) -> Any:
        def planned(*values: Any) -> Any:
            plan = real(*values)
            orders = tuple(structs.replace(each, **fields) for each in plan.orders)
            return structs.replace(plan, orders=orders)

        return planned

    return replaced_in((judging, handing_over), "planned", planted)


def user_lost() -> AbstractContextManager[None]:
    return _orders_without(user="")


def image_lost() -> AbstractContextManager[None]:
    return _orders_without(image=None)


def group_limit_lost() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        async def read_shared(databases: Any) -> Any:
            found = await real(databases)
            groups = tuple(structs.replace(each, max_per_host=1) for each in found.groups)
            return structs.replace(found, groups=groups)

        return read_shared

    return replaced_in((shared, command), "read_shared", planted)


def other_flavor_not_told() -> AbstractContextManager[None]:
    """A flavor that is here already is not compared."""

    def planted(real: Any) -> Any:
        async def compare_shared(*values: Any, names: Any) -> Any:
            found = await real(*values, names=names)
            return [
                each
                for each in found
                if not each.what.startswith("flavor") or "and it is not here" in each.words
            ]

        return compare_shared

    return replaced_in((shared, command), "compare_shared", planted)


def hosts_beyond_one_order_left_out() -> AbstractContextManager[None]:
    """Of an aggregate with more hosts than an order may name, the others are left out."""

    def planted(real: Any) -> Any:
        async def create_shared(api: Any, differences: Any) -> Any:
            return await real(api, [structs.replace(each, orders=each.orders[:1]) for each in differences])

        return create_shared

    return replaced_in((shared, command), "create_shared", planted)


def strangers_not_noticed() -> AbstractContextManager[None]:
    """Nobody asks what else lives on the host."""

    def planted(_real: Any) -> Any:
        async def living_on(self: Any, host: Any) -> list[Any]:  # noqa: ARG001
            return []

        return living_on

    return replaced(Cloud, "living_on", planted)


def given_back_and_still_ours() -> AbstractContextManager[None]:
    def planted(_real: Any) -> Any:
        async def note_given_back(self: Any, host: Any) -> None:
            self._handed_over.discard(host.id)

        return note_given_back

    return replaced(Cloud, "note_given_back", planted)


def guest_destroyed_when_given_back() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def destroy_order(*values: Any, keeps_guest: bool = False, **named: Any) -> Any:  # noqa: ARG001
            return real(*values, **named)

        return destroy_order

    return replaced_in((transition, conductor_hosts, decide), "destroy_order", planted)


def stopped_instance_active() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def adopted_row(order: Any, *values: Any, **named: Any) -> Any:
            is_stopped = order.state == "stopped"
            return real(structs.replace(order, state="active") if is_stopped else order, *values, **named)

        return adopted_row

    return replaced_in((lifecycle, adopting), "adopted_row", planted)


def moved_instance_given_back() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        return lambda row: "" if row.adopted else real(row)

    return replaced_in((lifecycle, adopting), "why_not_given_back", planted)


def taken_again_as_the_first_attempt() -> AbstractContextManager[None]:
    """An instance that was given back comes again by the attempt that has ended."""

    def planted(real: Any) -> Any:
        return lambda known: None if real(known) is None else FIRST_ATTEMPT

    return replaced_in((lifecycle, adopting), "attempt_of", planted)


def refused_instance_holds_its_claim() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        async def on_adopts(self: Any, asks: Any, transaction: Any) -> Any:
            said = await real(self, asks, transaction)
            return [
                each
                for each in said
                if not (isinstance(each, Tell) and isinstance(each.message, ReleaseClaim))
            ]

        return on_adopts

    return replaced(InstanceAdopter, "on_adopts", planted)


BUGS: dict[str, PlantedBug] = {
    "a host is taken over while its nova-compute runs": running_compute_not_noticed,
    "a host is taken over while Nova moves an instance there": migrations_not_waited_for,
    "an instance that two cells of Nova have is taken over": instance_of_two_cells_taken,
    "an instance that holds another share than in Nova counts as equal": other_share_not_told,
    "more instances are taken over than a host has room for": needs_not_added_up,
    "an instance with large pages is taken over without them": large_pages_forgotten,
    "the user of an instance is lost when it is taken over": user_lost,
    "the image of an instance is lost when it is taken over": image_lost,
    "the limit of a group is lost when it is taken over": group_limit_lost,
    "a flavor of Nova that is another one here is not told": other_flavor_not_told,
    "an aggregate is taken over without its last hosts": hosts_beyond_one_order_left_out,
    "a host is given back with what was built on it": strangers_not_noticed,
    "a host that was given back counts as taken over": given_back_and_still_ours,
    "a guest is destroyed when it is given back": guest_destroyed_when_given_back,
    "a stopped instance is active after it was taken over": stopped_instance_active,
    "an instance that has moved is given back": moved_instance_given_back,
    "an instance that was given back cannot come again": taken_again_as_the_first_attempt,
    "an instance that cannot be taken over keeps its claim": refused_instance_holds_its_claim,
}
