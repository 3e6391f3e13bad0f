"""Planted bugs in what speaks with Nova: RPC, claims over HTTP, its cloud, shadow mode; and in imports from a Nova."""

from typing import Any

import msgspec
from msgspec import structs

from bus.messages.placement import ReleaseClaim, SwapClaim
from bus.workers.handlers import Tell
from cell_conductor import hosts as conductor_hosts
from cell_conductor.core import decide, transition
from nova_bridge import cloud, cloud_reading, envelope, request_spec, selection, serving
from nova_bridge.deciding import NovaDecider, NovaNeeds, NovaSearch
from nova_bridge.envelope import Fields
from nova_bridge.importing import command, handing_over, judging, shared, shares
from nova_bridge.importing.handing_over import Cloud
from nova_bridge.importing.reading import NovaDatabases
from nova_bridge.importing.shares import HostTree
from nova_bridge.in_moor import LooksInFile
from nova_bridge.placement_api import PlacementApi
from nova_bridge.placement_books import HttpBooks
from nova_bridge.serving import NovaCall, NovaCasts
from nova_bridge.shadow import wiring
from nova_bridge.shadow.choosing import ShadowChooser
from scheduler_worker.core.instances import lifecycle
from scheduler_worker.core.instances.rows import FIRST_ATTEMPT
from scheduler_worker.requests import adopting
from scheduler_worker.requests.adopting import InstanceAdopter
from tests.planted.replacing import planted, planted_by


@planted("a host stays claimed for a caller of Nova that is gone", NovaDecider, "undo", harm="lost")
async def claim_of_nobody_kept(_real: Any, self: Any, searches: Any, is_ours: Any) -> bool:
    return True


# The new share takes the place of all that an evacuated instance holds.
@planted("an evacuated instance gives up what it has on its old host", NovaSearch, "order", harm="overbooked")
def old_share_dropped(real: Any, self: Any) -> Any:
    made = real(self)
    return structs.replace(made, share=self.claim().share) if isinstance(made, SwapClaim) else made


# Each write is at the consumer's present generation, whatever was known when it was decided.
@planted("what Nova has written meanwhile is overwritten", PlacementApi, "allocate", harm="destroyed")
async def written_over_a_later_write(real: Any, self: Any, consumer: Any, allocated: Any) -> Any:
    present = await self.held_by(consumer)
    return await real(self, consumer, structs.replace(allocated, generation=present.generation))


@planted("room that Nova frees is never found", PlacementApi, "used_where_there_is")
async def freed_room_not_seen(_real: Any, self: Any, resource: str, amount: int) -> Any:
    return {}


# A caller that gets no sign of life is believed to wait as long as for an answer.
planted_by("a claim is made for a caller of Nova that has given up", NovaCall, "ends_by", harm="doubled")(
    lambda _real: property(lambda self: self.expires_at)
)


planted_by("a call of a later release of Nova is answered", envelope.RpcVersion, "can_serve")(
    lambda _real: lambda self, asked: self.major == asked.major
)


planted_by("the log shows the tokens of Nova's users", (envelope, serving), "redacted", harm="unauthorised")(
    lambda _real: lambda body: body
)


@planted("a deleted instance of Nova still loads its host", NovaCasts, "take")
def deleted_instance_counts(real: Any, self: Any, request: Any) -> None:
    if request.method != "delete_instance_info":
        real(self, request)


@planted("a changed aggregate of Nova waits for the next reading", NovaCasts, "take")
def aggregates_not_read_again(real: Any, self: Any, request: Any) -> None:
    if "aggregate" not in request.method:
        real(self, request)


@planted("Nova gets a host again that it has tried", request_spec, "destination_of")
def tried_hosts_chosen_again(real: Any, spec: Any, known: Any) -> Any:
    values = {name: value for name, value in spec.values.items() if name != "retry"}
    return real(Fields(values, spec.path), known)


@planted("a rebuild is allowed on a host that cannot run the image", NovaNeeds, "judge_rebuild")
def image_of_rebuild_not_judged(real: Any, self: Any, request: Any) -> Any:
    return real(self, structs.replace(request, spec=structs.replace(request.spec, image_properties=())))


# A host with one member counts as full, whatever limit the group has.
@planted("a group of Nova has one member for each host whatever its limit is", NovaNeeds, "spec_of")
def full_group_judged_by_its_hosts(real: Any, self: Any, request: Any, hosts: Any) -> Any:
    if request.group is None:
        return real(self, request, hosts)
    definition = structs.replace(request.group.definition, max_per_host=1)
    group = structs.replace(request.group, definition=definition)
    return real(self, structs.replace(request, group=group), hosts)


@planted("Nova does not find the provider of a port", selection, "allocation_request")
def groups_named_as_ours(real: Any, selected: Any, spec: Any) -> Any:
    asked = real(selected, spec)
    ours = {each.suffix.removeprefix("port "): each.suffix for each in spec.groups}
    return asked | {"mappings": {ours.get(name, name): of for name, of in asked["mappings"].items()}}


planted_by("an older notification of Nova wins", (cloud, cloud_reading), "hear")(
    lambda real: lambda known, heard: real(structs.replace(known, heard_at={}), heard)
)


planted_by("what Nova tells while it is read is lost", (cloud, cloud_reading), "after_read", harm="lost")(
    lambda real: lambda read, since: real(read, ())
)


planted_by("the hosts of a silent cell of Nova are gone", (cloud, cloud_reading), "with_services")(
    lambda real: lambda known, read, since: real(known, structs.replace(read, silent=()), since)
)


planted_by("only the first page of Nova's hosts is read", (cloud, cloud_reading), "next_of")(
    lambda _real: lambda body, key: ""
)


planted_by(
    "the instances of a silent cell of Nova are freed", (cloud, cloud_reading), "ids_in", harm="overbooked"
)(lambda real: lambda body, key, id_field: (real(body, key, id_field)[0], False))


# The file is read as if the Nova that is asked now had written it.
@planted("what another Nova did not know is freed", LooksInFile, "load", harm="overbooked")
def looks_of_another_nova(real: Any, self: Any) -> Any:
    if self._file.exists():
        self._nova = msgspec.json.decode(self._file.read_bytes())["nova"]
    return real(self)


planted_by("choices of shadow mode take room for ever", ShadowChooser, "drop")(
    lambda _real: lambda self, instances: None
)


@planted("copies of Nova's requests pile up", wiring, "shadow_queues")
def copies_without_bounds(real: Any, settings: Any, unique: str) -> Any:
    copies, fanout = real(settings, unique)
    return structs.replace(copies, arguments={}), fanout


# A claim joins its group, and nobody leaves one.
planted_by("a member of a group that has left its host of Nova still binds", HttpBooks, "_leave_groups")(
    lambda _real: lambda self, provider, before, now: None
)


# A disabled service is enough: nobody looks whether its nova-compute was stopped.
@planted(
    "a host is taken over while its nova-compute runs",
    (judging, handing_over),
    "why_not_fenced",
    harm="doubled",
)
def running_compute_not_noticed(real: Any, host: Any, now: Any) -> Any:
    service = host.service
    stopped = None if service is None else structs.replace(service, seen_at=None)
    return real(structs.replace(host, service=stopped), now)


planted_by(
    "a host is taken over while Nova moves an instance there",
    (judging, handing_over),
    "what_is_under_way",
    harm="doubled",
)(lambda real: lambda host: real(structs.replace(host, migrations=())))


@planted("an instance that two cells of Nova have is taken over", NovaDatabases, "duplicates", harm="doubled")
async def instance_of_two_cells_taken(_real: Any, self: Any) -> list[str]:
    return []


# An instance that holds other amounts here counts as equal.
@planted(
    "an instance that holds another share than in Nova counts as equal",
    (judging, handing_over),
    "differences_of",
    harm="overbooked",
)
def other_share_not_told(real: Any, *values: Any, is_asked: bool) -> Any:
    return [each for each in real(*values, is_asked=is_asked) if "it holds" not in each]


# Each instance of a host is judged as if it was the only one.
planted_by("more instances are taken over than a host has room for", HostTree, "take", harm="overbooked")(
    lambda _real: lambda self, amounts: None
)


@planted(
    "an instance with large pages is taken over without them",
    (shares, judging),
    "share_of",
    harm="overbooked",
)
def large_pages_forgotten(real: Any, instance: Any, wanted: Any, cells: Any, devices: Any, tree: Any) -> Any:
    small = [structs.replace(each, page_kib=None) for each in cells]
    return real(instance, wanted, small, devices, tree)


@planted(
    "the user of an instance is lost when it is taken over", (judging, handing_over), "planned", harm="lost"
)
def user_of_instance_lost(real: Any, *values: Any) -> Any:
    plan = real(*values)
    return structs.replace(plan, orders=tuple(structs.replace(each, user="") for each in plan.orders))


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
@planted("an aggregate is taken over without its last hosts", (shared, command), "create_shared", harm="lost")
async def hosts_beyond_one_order_left_out(real: Any, api: Any, differences: Any) -> Any:
    return await real(api, [structs.replace(each, orders=each.orders[:1]) for each in differences])


# Nobody asks what else lives on the host.
@planted("a host is given back with what was built on it", Cloud, "living_on", harm="destroyed")
async def strangers_not_noticed(_real: Any, self: Any, host: Any) -> list[Any]:
    return []


@planted("a host that was given back counts as taken over", Cloud, "note_given_back", harm="doubled")
async def given_back_and_still_ours(_real: Any, self: Any, host: Any) -> None:
    self._handed_over.discard(host.id)


@planted(
    "a guest is destroyed when it is given back",
    (transition, conductor_hosts, decide),
    "destroy_order",
    harm="destroyed",
)
def guest_destroyed_when_given_back(real: Any, *values: Any, keeps_guest: bool = False, **named: Any) -> Any:
    return real(*values, **named)


planted_by(
    "the image of an instance is lost when it is taken over",
    (lifecycle, adopting),
    "adopted_row",
    harm="lost",
)(lambda real: lambda order, *values, **named: real(structs.replace(order, image=None), *values, **named))


@planted(
    "a stopped instance is active after it was taken over", (lifecycle, adopting), "adopted_row", harm="lost"
)
def stopped_instance_active(real: Any, order: Any, *values: Any, **named: Any) -> Any:
    is_stopped = order.state == "stopped"
    return real(structs.replace(order, state="active") if is_stopped else order, *values, **named)


planted_by(
    "an instance that has moved is given back", (lifecycle, adopting), "why_not_given_back", harm="doubled"
)(lambda real: lambda row: "" if row.adopted else real(row))


# An instance that was given back comes again by the attempt that has ended.
planted_by(
    "an instance that was given back cannot come again", (lifecycle, adopting), "attempt_of", harm="lost"
)(lambda real: lambda known: None if real(known) is None else FIRST_ATTEMPT)


@planted("an instance that cannot be taken over keeps its claim", InstanceAdopter, "on_adopts", harm="lost")
async def refused_instance_holds_its_claim(real: Any, self: Any, asks: Any, transaction: Any) -> Any:
    said = await real(self, asks, transaction)
    return [each for each in said if not (isinstance(each, Tell) and isinstance(each.message, ReleaseClaim))]
