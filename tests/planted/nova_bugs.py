"""Planted bugs in what Nova speaks with: its RPC, claims over HTTP, what is known of its cloud, shadow mode."""

from contextlib import AbstractContextManager
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
from tests.planted.replacing import PlantedBug, replaced, replaced_in


def claim_of_nobody_kept() -> AbstractContextManager[None]:
    def planted(_real: Any) -> Any:
        async def undo(self: Any, searches: Any, is_ours: Any) -> bool:  # noqa: ARG001
            return True

        return undo

    return replaced(NovaDecider, "undo", planted)


def old_share_dropped() -> AbstractContextManager[None]:
    """The new share takes the place of all that an evacuated instance holds."""

    def planted(real: Any) -> Any:
        def order(self: Any) -> Any:
            made = real(self)
            return structs.replace(made, share=self.claim().share) if isinstance(made, SwapClaim) else made

        return order

    return replaced(NovaSearch, "order", planted)


def written_over_a_later_write() -> AbstractContextManager[None]:
    """Each write is at the consumer's present generation, whatever was known when it was decided."""

    def planted(real: Any) -> Any:
        async def allocate(self: Any, consumer: Any, allocated: Any) -> Any:
            present = await self.held_by(consumer)
            return await real(self, consumer, structs.replace(allocated, generation=present.generation))

        return allocate

    return replaced(PlacementApi, "allocate", planted)


def freed_room_not_seen() -> AbstractContextManager[None]:
    def planted(_real: Any) -> Any:
        async def used_where_there_is(self: Any, resource: str, amount: int) -> Any:  # noqa: ARG001
            return {}

        return used_where_there_is

    return replaced(PlacementApi, "used_where_there_is", planted)


def patience_of_caller_forgotten() -> AbstractContextManager[None]:
    """A caller that gets no sign of life is believed to wait as long as for an answer."""
    return replaced(NovaCall, "ends_by", lambda _real: property(lambda self: self.expires_at))


def later_version_served() -> AbstractContextManager[None]:
    def planted(_real: Any) -> Any:
        return lambda self, asked: self.major == asked.major

    return replaced(envelope.RpcVersion, "can_serve", planted)


def secrets_logged() -> AbstractContextManager[None]:
    return replaced_in((envelope, serving), "redacted", lambda _real: lambda body: body)


def deleted_instance_counts() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def take(self: Any, request: Any) -> None:
            if request.method != "delete_instance_info":
                real(self, request)

        return take

    return replaced(NovaCasts, "take", planted)


def aggregates_not_read_again() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def take(self: Any, request: Any) -> None:
            if "aggregate" not in request.method:
                real(self, request)

        return take

    return replaced(NovaCasts, "take", planted)


def tried_hosts_chosen_again() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def destination_of(spec: Any, known: Any) -> Any:
            values = {name: value for name, value in spec.values.items() if name != "retry"}
            return real(Fields(values, spec.path), known)

        return destination_of

    return replaced(request_spec, "destination_of", planted)


def image_of_rebuild_not_judged() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def judge_rebuild(self: Any, request: Any) -> Any:
            return real(
                self, structs.replace(request, spec=structs.replace(request.spec, image_properties=()))
            )

        return judge_rebuild

    return replaced(NovaNeeds, "judge_rebuild", planted)


def full_group_judged_by_its_hosts() -> AbstractContextManager[None]:
    """A host with one member counts as full, whatever limit the group has."""

    def planted(real: Any) -> Any:
        def spec_of(self: Any, request: Any, hosts: Any) -> Any:
            if request.group is None:
                return real(self, request, hosts)
            definition = structs.replace(request.group.definition, max_per_host=1)
            group = structs.replace(request.group, definition=definition)
            return real(self, structs.replace(request, group=group), hosts)

        return spec_of

    return replaced(NovaNeeds, "spec_of", planted)


def groups_named_as_ours() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def allocation_request(selected: Any, spec: Any) -> Any:
            asked = real(selected, spec)
            ours = {each.suffix.removeprefix("port "): each.suffix for each in spec.groups}
            return asked | {"mappings": {ours.get(name, name): of for name, of in asked["mappings"].items()}}

        return allocation_request

    return replaced(selection, "allocation_request", planted)


def older_notification_wins() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        return lambda known, heard: real(structs.replace(known, heard_at={}), heard)

    return replaced_in((cloud, cloud_reading), "hear", planted)


def heard_while_reading_lost() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        return lambda read, since: real(read, ())  # noqa: ARG005

    return replaced_in((cloud, cloud_reading), "after_read", planted)


def services_of_silent_cells_gone() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        return lambda known, read, since: real(known, structs.replace(read, silent=()), since)

    return replaced_in((cloud, cloud_reading), "with_services", planted)


def first_page_only() -> AbstractContextManager[None]:
    return replaced_in((cloud, cloud_reading), "next_of", lambda _real: lambda body, key: "")  # noqa: ARG005


def part_of_servers_counts_as_all() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        return lambda body, key, id_field: (real(body, key, id_field)[0], False)

    return replaced_in((cloud, cloud_reading), "ids_in", planted)


def looks_of_another_nova() -> AbstractContextManager[None]:
    """The file is read as if the Nova that is asked now had written it."""

    def planted(real: Any) -> Any:
        def load(self: Any) -> Any:
            if self._file.exists():
                self._nova = msgspec.json.decode(self._file.read_bytes())["nova"]
            return real(self)

        return load

    return replaced(LooksInFile, "load", planted)


def shadow_choices_kept() -> AbstractContextManager[None]:
    return replaced(ShadowChooser, "drop", lambda _real: lambda self, instances: None)  # noqa: ARG005


def copies_without_bounds() -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def shadow_queues(settings: Any, unique: str) -> Any:
            copies, fanout = real(settings, unique)
            return structs.replace(copies, arguments={}), fanout

        return shadow_queues

    return replaced(wiring, "shadow_queues", planted)


def members_that_left_remembered() -> AbstractContextManager[None]:
    """A claim joins its group, and nobody leaves one."""

    def planted(_real: Any) -> Any:
        return lambda self, provider, before, now: None  # noqa: ARG005

    return replaced(HttpBooks, "_leave_groups", planted)


BUGS: dict[str, PlantedBug] = {
    "a host stays claimed for a caller of Nova that is gone": claim_of_nobody_kept,
    "an evacuated instance gives up what it has on its old host": old_share_dropped,
    "what Nova has written meanwhile is overwritten": written_over_a_later_write,
    "room that Nova frees is never found": freed_room_not_seen,
    "a claim is made for a caller of Nova that has given up": patience_of_caller_forgotten,
    "a call of a later release of Nova is answered": later_version_served,
    "the log shows the tokens of Nova's users": secrets_logged,
    "a deleted instance of Nova still loads its host": deleted_instance_counts,
    "a changed aggregate of Nova waits for the next reading": aggregates_not_read_again,
    "Nova gets a host again that it has tried": tried_hosts_chosen_again,
    "a rebuild is allowed on a host that cannot run the image": image_of_rebuild_not_judged,
    "a group of Nova has one member for each host whatever its limit is": full_group_judged_by_its_hosts,
    "Nova does not find the provider of a port": groups_named_as_ours,
    "an older notification of Nova wins": older_notification_wins,
    "what Nova tells while it is read is lost": heard_while_reading_lost,
    "the hosts of a silent cell of Nova are gone": services_of_silent_cells_gone,
    "only the first page of Nova's hosts is read": first_page_only,
    "the instances of a silent cell of Nova are freed": part_of_servers_counts_as_all,
    "what another Nova did not know is freed": looks_of_another_nova,
    "choices of shadow mode take room for ever": shadow_choices_kept,
    "copies of Nova's requests pile up": copies_without_bounds,
    "a member of a group that has left its host of Nova still binds": members_that_left_remembered,
}
