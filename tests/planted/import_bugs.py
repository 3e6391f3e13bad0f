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
from tests.planted.replacing import planted, planted_as, planted_by, replaced_in


# A disabled service is enough: nobody looks whether its nova-compute was stopped.
@planted("a host is taken over while its nova-compute runs", (judging, handing_over), "why_not_fenced")
def running_compute_not_noticed(real: Any, host: Any, now: Any) -> Any:
    service = host.service
    stopped = None if service is None else structs.replace(service, seen_at=None)
    return real(structs.replace(host, service=stopped), now)


@planted_by(
    "a host is taken over while Nova moves an instance there", (judging, handing_over), "what_is_under_way"
)
def migrations_not_waited_for(real: Any) -> Any:
    return lambda host: real(structs.replace(host, migrations=()))


@planted("an instance that two cells of Nova have is taken over", NovaDatabases, "duplicates")
async def instance_of_two_cells_taken(_real: Any, self: Any) -> list[str]:
    return []


# An instance that holds other amounts here counts as equal.
@planted(
    "an instance that holds another share than in Nova counts as equal",
    (judging, handing_over),
    "differences_of",
)
def other_share_not_told(real: Any, *values: Any, is_asked: bool) -> Any:
    return [each for each in real(*values, is_asked=is_asked) if "it holds" not in each]


# Each instance of a host is judged as if it was the only one.
planted_by("more instances are taken over than a host has room for", HostTree, "take")(
    lambda _real: lambda self, amounts: None
)


@planted("an instance with large pages is taken over without them", (shares, judging), "share_of")
def large_pages_forgotten(real: Any, instance: Any, wanted: Any, cells: Any, devices: Any, tree: Any) -> Any:
    small = [structs.replace(each, page_kib=None) for each in cells]
    return real(instance, wanted, small, devices, tree)


def _orders_without(**fields: Any) -> AbstractContextManager[None]:
    """These fields of each instance that is taken over."""

    def planted(real: Any) -> Any:
        def planned(*values: Any) -> Any:
            plan = real(*values)
            orders = tuple(structs.replace(each, **fields) for each in plan.orders)
            return structs.replace(plan, orders=orders)

        return planned

    return replaced_in((judging, handing_over), "planned", planted)


@planted_as("the user of an instance is lost when it is taken over")
def user_lost() -> AbstractContextManager[None]:
    return _orders_without(user="")


@planted_as("the image of an instance is lost when it is taken over")
def image_lost() -> AbstractContextManager[None]:
    return _orders_without(image=None)


@planted("the limit of a group is lost when it is taken over", (shared, command), "read_shared")
async def group_limit_lost(real: Any, databases: Any) -> Any:
    found = await real(databases)
    groups = tuple(structs.replace(each, max_per_host=1) for each in found.groups)
    return structs.replace(found, groups=groups)


# A flavor that is here already is not compared.
@planted("a flavor of Nova that is another one here is not told", (shared, command), "compare_shared")
async def other_flavor_not_told(real: Any, *values: Any, names: Any) -> Any:
    found = await real(*values, names=names)
    return [
        each for each in found if not each.what.startswith("flavor") or "and it is not here" in each.words
    ]


# Of an aggregate with more hosts than an order may name, the others are left out.
@planted("an aggregate is taken over without its last hosts", (shared, command), "create_shared")
async def hosts_beyond_one_order_left_out(real: Any, api: Any, differences: Any) -> Any:
    return await real(api, [structs.replace(each, orders=each.orders[:1]) for each in differences])


# Nobody asks what else lives on the host.
@planted("a host is given back with what was built on it", Cloud, "living_on")
async def strangers_not_noticed(_real: Any, self: Any, host: Any) -> list[Any]:
    return []


@planted("a host that was given back counts as taken over", Cloud, "note_given_back")
async def given_back_and_still_ours(_real: Any, self: Any, host: Any) -> None:
    self._handed_over.discard(host.id)


@planted("a guest is destroyed when it is given back", (transition, conductor_hosts, decide), "destroy_order")
def guest_destroyed_when_given_back(real: Any, *values: Any, keeps_guest: bool = False, **named: Any) -> Any:
    return real(*values, **named)


@planted("a stopped instance is active after it was taken over", (lifecycle, adopting), "adopted_row")
def stopped_instance_active(real: Any, order: Any, *values: Any, **named: Any) -> Any:
    is_stopped = order.state == "stopped"
    return real(structs.replace(order, state="active") if is_stopped else order, *values, **named)


@planted_by("an instance that has moved is given back", (lifecycle, adopting), "why_not_given_back")
def moved_instance_given_back(real: Any) -> Any:
    return lambda row: "" if row.adopted else real(row)


# An instance that was given back comes again by the attempt that has ended.
@planted_by("an instance that was given back cannot come again", (lifecycle, adopting), "attempt_of")
def taken_again_as_the_first_attempt(real: Any) -> Any:
    return lambda known: None if real(known) is None else FIRST_ATTEMPT


@planted("an instance that cannot be taken over keeps its claim", InstanceAdopter, "on_adopts")
async def refused_instance_holds_its_claim(real: Any, self: Any, asks: Any, transaction: Any) -> Any:
    said = await real(self, asks, transaction)
    return [each for each in said if not (isinstance(each, Tell) and isinstance(each.message, ReleaseClaim))]
