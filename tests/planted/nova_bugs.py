"""Planted bugs in what Nova speaks with: its RPC, claims over HTTP, what is known of its cloud, shadow mode."""

from typing import Any

import msgspec
from msgspec import structs

from bus.messages.placement import SwapClaim
from nova_bridge import cloud, cloud_reading, envelope, request_spec, selection, serving
from nova_bridge.deciding import NovaDecider, NovaNeeds, NovaSearch
from nova_bridge.envelope import Fields
from nova_bridge.in_moor import LooksInFile
from nova_bridge.placement_api import PlacementApi
from nova_bridge.placement_books import HttpBooks
from nova_bridge.serving import NovaCall, NovaCasts
from nova_bridge.shadow import wiring
from nova_bridge.shadow.choosing import ShadowChooser
from tests.planted.replacing import planted, planted_by


@planted("a host stays claimed for a caller of Nova that is gone", NovaDecider, "undo")
async def claim_of_nobody_kept(_real: Any, self: Any, searches: Any, is_ours: Any) -> bool:
    return True


# The new share takes the place of all that an evacuated instance holds.
@planted("an evacuated instance gives up what it has on its old host", NovaSearch, "order")
def old_share_dropped(real: Any, self: Any) -> Any:
    made = real(self)
    return structs.replace(made, share=self.claim().share) if isinstance(made, SwapClaim) else made


# Each write is at the consumer's present generation, whatever was known when it was decided.
@planted("what Nova has written meanwhile is overwritten", PlacementApi, "allocate")
async def written_over_a_later_write(real: Any, self: Any, consumer: Any, allocated: Any) -> Any:
    present = await self.held_by(consumer)
    return await real(self, consumer, structs.replace(allocated, generation=present.generation))


@planted("room that Nova frees is never found", PlacementApi, "used_where_there_is")
async def freed_room_not_seen(_real: Any, self: Any, resource: str, amount: int) -> Any:
    return {}


# A caller that gets no sign of life is believed to wait as long as for an answer.
planted_by("a claim is made for a caller of Nova that has given up", NovaCall, "ends_by")(
    lambda _real: property(lambda self: self.expires_at)
)


@planted_by("a call of a later release of Nova is answered", envelope.RpcVersion, "can_serve")
def later_version_served(_real: Any) -> Any:
    return lambda self, asked: self.major == asked.major


planted_by("the log shows the tokens of Nova's users", (envelope, serving), "redacted")(
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


@planted_by("an older notification of Nova wins", (cloud, cloud_reading), "hear")
def older_notification_wins(real: Any) -> Any:
    return lambda known, heard: real(structs.replace(known, heard_at={}), heard)


@planted_by("what Nova tells while it is read is lost", (cloud, cloud_reading), "after_read")
def heard_while_reading_lost(real: Any) -> Any:
    return lambda read, since: real(read, ())


@planted_by("the hosts of a silent cell of Nova are gone", (cloud, cloud_reading), "with_services")
def services_of_silent_cells_gone(real: Any) -> Any:
    return lambda known, read, since: real(known, structs.replace(read, silent=()), since)


planted_by("only the first page of Nova's hosts is read", (cloud, cloud_reading), "next_of")(
    lambda _real: lambda body, key: ""
)


@planted_by("the instances of a silent cell of Nova are freed", (cloud, cloud_reading), "ids_in")
def part_of_servers_counts_as_all(real: Any) -> Any:
    return lambda body, key, id_field: (real(body, key, id_field)[0], False)


# The file is read as if the Nova that is asked now had written it.
@planted("what another Nova did not know is freed", LooksInFile, "load")
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
@planted_by("a member of a group that has left its host of Nova still binds", HttpBooks, "_leave_groups")
def members_that_left_remembered(_real: Any) -> Any:
    return lambda self, provider, before, now: None
