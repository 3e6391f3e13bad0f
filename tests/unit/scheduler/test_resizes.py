"""A resize changes what it names; everything else stays, however many resizes and reverts came before."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from msgspec import structs

from bus.messages.audit import MendInstance
from bus.messages.build import BuildInstance, BuildRejected, FlavorChange, InstancesFound, InstanceState
from bus.messages.moves import MoveInstance
from bus.workers.handlers import Answer
from engine.flavors import Flavor, Image, PortRequest, RequestId, VolumeRequest
from engine.inventories import InventoryState
from scheduler_worker.core.instances.history import decoded, encoded
from scheduler_worker.core.instances.lifecycle import mended
from scheduler_worker.core.instances.moves import move_ended
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.store_sql import InstanceQuery, NewRequest
from tests.contracts.placement_orders import an_id
from tests.narrowing import must_be, present
from tests.unit.choosing.scheduler_worlds import a_host, a_state
from tests.unit.scheduler.lone_scheduler import LoneScheduler
from tests.unit.scheduler.test_moves_at_api_level import NOON, ONE, a_row, an_end, arrived, is_up

ROOM = InventoryState(total=10**6, max_unit=10**6)
CLASSES = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB", "VGPU", "CUSTOM_FPGA", "NET_BW_EGR_KILOBIT_PER_SEC")
TRAITS = ("HW_CPU_X86_AVX2", "CUSTOM_FAST", "HW_NIC_OFFLOAD_GENEVE", "CUSTOM_PHYSNET_NORTH")
WEB = Flavor(
    name="web",
    vcpus=2,
    ram_mb=4096,
    root_gb=10,
    ephemeral_gb=5,
    swap_mb=512,
    extra_specs={
        "resources1:VGPU": "1",
        "trait1:CUSTOM_FAST": "required",
        "trait:HW_CPU_X86_AVX2": "required",
        "resources:CUSTOM_FPGA": "2",
    },
)


@dataclass
class Cloud:
    """A scheduler with two hosts that have everything, and one instance."""

    worker: LoneScheduler
    number: int = 100

    @classmethod
    async def with_instance(cls, flavor: Flavor = WEB, **request: object) -> "Cloud":
        worker = LoneScheduler()
        for name in ("h1", "h2"):
            worker.picture.apply([a_state(name, dict.fromkeys(CLASSES, ROOM), traits=TRAITS)])
            worker.picture.put_hosts([a_host(each) for each in ("h1", "h2")])
        build = BuildInstance(request_id=a_row().told.request_id, flavor=flavor)
        build = structs.replace(build, **request)
        spec = worker.spec_of(build)
        assert not isinstance(spec, BuildRejected), spec
        kept = encoded(spec, build)
        row = structs.replace(a_row(), spec=kept)
        async with worker.store.transaction() as transaction:
            await transaction.accept([NewRequest(row.told.request_id, b"digest", (row,))])
        return cls(worker)

    async def row(self) -> InstanceRow:
        (row,) = await self.worker.store.instances(InstanceQuery(instances=(ONE,)))
        return row

    async def resize(
        self,
        change: FlavorChange | None = None,
        flavor: Flavor | None = None,
        *,
        request: RequestId | None = None,
        **order: object,
    ) -> InstancesFound | BuildRejected:
        self.number += 1
        resize = MoveInstance(
            request_id=request or RequestId(an_id(str(self.number))),
            instance=ONE,
            kind="resize",
            change=change,
            flavor=flavor,
        )
        said = await self.worker.handle(structs.replace(resize, **order))
        (answer,) = [each.message for each in said if isinstance(each, Answer)]
        assert isinstance(answer, InstancesFound | BuildRejected)
        return answer

    async def refused(
        self, change: FlavorChange | None = None, flavor: Flavor | None = None, **order: object
    ) -> tuple[str, str, str]:
        before = await self.row()
        answer = await self.resize(change, flavor, **order)  # type: ignore[arg-type]
        assert isinstance(answer, BuildRejected), answer
        assert await self.row() == before
        return answer.field, answer.value, answer.reason

    async def end(self, outcome: str) -> None:
        """The cell reports the arrival, a client ends the move, and the cell reports the end."""
        row = arrived(await self.row())
        order = an_end("confirm" if outcome == "confirmed" else "revert")
        asked = must_be(
            InstanceRow,
            move_ended(
                row, structs.replace(order, request_id=present(row.told.move).request_id), NOON, is_up
            ),
        )
        async with self.worker.store.transaction() as transaction:
            await transaction.lock([ONE])
            await transaction.save([arrived(asked, outcome, "h2" if outcome == "confirmed" else "h1")])

    async def resized(self, change: FlavorChange, outcome: str = "confirmed") -> None:
        must_be(InstancesFound, await self.resize(change))
        await self.end(outcome)

    async def amounts(self) -> Mapping[str, int]:
        spec = present(decoded((await self.row()).current_spec))
        return dict(spec.amounts)


WEB_AMOUNTS = {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 16, "VGPU": 1, "CUSTOM_FPGA": 2}


async def test_a_resize_changes_what_it_names_and_keeps_all_else() -> None:
    port = PortRequest(id="port", resources={"NET_BW_EGR_KILOBIT_PER_SEC": 1000}, physical_network="north")
    volume = VolumeRequest(id="volume", resources={"DISK_GB": 3}, required=("CUSTOM_FAST",))
    here = await Cloud.with_instance(
        image=Image(source="debian"),
        image_properties={"trait:HW_NIC_OFFLOAD_GENEVE": "required"},
        port_requests=(port,),
        volume_requests=(volume,),
        ignore_hosts=("h9",),
    )
    before = decoded((await here.row()).spec)
    await here.resized(FlavorChange(vcpus=4))
    assert await here.amounts() == {
        **WEB_AMOUNTS,
        "VCPU": 4,
        "DISK_GB": 19,
        "NET_BW_EGR_KILOBIT_PER_SEC": 1000,
    }
    after = decoded((await here.row()).current_spec)
    assert after == structs.replace(present(before), amounts=after.amounts if after else ())
    move = present((await here.row()).told.move)
    assert move.flavor is not None
    assert (move.flavor.vcpus, move.flavor.ram_mb, move.flavor.name) == (4, 4096, "web")


HUGE = FlavorChange(extra_specs={"hw:mem_page_size": "2MB"})
# The instance's flavor; resizes that are confirmed, and the amounts that it has then; or why one is refused.
CASES: dict[str, tuple[Flavor, list[tuple[FlavorChange | Flavor, Mapping[str, int] | str]]]] = {
    "what is dropped is said": (
        WEB,
        [
            (
                FlavorChange(root_gb=0, extra_specs={"resources1:VGPU": None, "trait1:CUSTOM_FAST": None}),
                {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 6, "CUSTOM_FPGA": 2},
            ),
            (
                FlavorChange(ram_mb=0, extra_specs={"resources:CUSTOM_FPGA": "0"}),
                {"VCPU": 2, "DISK_GB": 6},
            ),
        ],
    ),
    "a whole flavor takes memory or processors away only if it says so": (
        WEB,
        [
            (Flavor(vcpus=4), "flavor.ram_mb 0: the instance has 4096 MEMORY_MB, and would have none"),
            (Flavor(ram_mb=64), "flavor.vcpus 0: "),
            (Flavor(vcpus=4, extra_specs={"resources:MEMORY_MB": "0"}), {"VCPU": 4}),
            (Flavor(vcpus=8), {"VCPU": 8}),
        ],
    ),
    "a change names something": (WEB, [(FlavorChange(), "change : it names nothing that changes")]),
    "a change has amounts that there may be": (
        WEB,
        [(FlavorChange(vcpus=-1), "change.vcpus -1: an amount is 0 to 2147483647")],
    ),
    "a change removes what is there": (
        WEB,
        [
            (
                FlavorChange(extra_specs={"trait:HW_CPU_X86_SSE": None}),
                "change.extra_specs.trait:HW_CPU_X86_SSE null: there is none to remove: the flavor has "
                + ", ".join(sorted(WEB.extra_specs)),
            )
        ],
    ),
    "a change says one thing of an amount": (
        WEB,
        [
            (
                FlavorChange(vcpus=4, extra_specs={"resources:VCPU": "3"}),
                "change.vcpus 4: its extra spec resources:VCPU=3 counts in place of it: change that",
            )
        ],
    ),
    # No host has such pages; but the size is not taken for one without memory.
    "memory may move into huge pages by a resize": (
        Flavor(vcpus=2, ram_mb=64),
        [(HUGE, "CUSTOM_MEMORY_MB_PAGES_2048")],
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_resize_gives_these_amounts_or_is_refused_by_field_and_reason(case: str) -> None:
    flavor, resizes = CASES[case]
    here = await Cloud.with_instance(flavor)
    for asked, says in resizes:
        change, whole = (asked, None) if isinstance(asked, FlavorChange) else (None, asked)
        if isinstance(says, str):
            assert says in "{} {}: {}".format(*await here.refused(change, whole))
        else:
            assert isinstance(await here.resize(change, whole), InstancesFound)
            await here.end("confirmed")
            assert await here.amounts() == says


async def test_a_resize_has_a_change_or_a_flavor_and_only_a_resize_has_one() -> None:
    here = await Cloud.with_instance()
    change = FlavorChange(vcpus=4)
    assert (await here.refused(change, WEB))[::2] == (
        "change",
        "flavor is given, too: change says what differs, flavor is the whole size; give one of both",
    )
    assert (await here.refused(change, kind="migrate"))[::2] == (
        "change",
        "only a resize changes the flavor: migrate keeps the whole size",
    )


async def test_a_repeated_order_is_done_once_and_one_of_other_content_is_refused() -> None:
    here = await Cloud.with_instance()
    request = RequestId(an_id("again"))
    order = FlavorChange(vcpus=4)
    assert isinstance(await here.resize(order, request=request), InstancesFound)
    going = await here.row()
    assert isinstance(await here.resize(order, request=request), InstancesFound)
    assert await here.row() == going
    await here.end("confirmed")
    assert isinstance(await here.resize(order, request=request), InstancesFound)
    for other in (
        {"change": FlavorChange(vcpus=8)},
        {"change": FlavorChange(ram_mb=4096)},
        {"change": None, "flavor": WEB},
        {"change": order, "hosts": ("h1",)},
    ):
        field, value, reason = await here.refused(request=request, **other)
        assert (field, value) == ("request_id", str(request))
        assert reason == "duplicate id: an order with this id and other content was taken before"


async def test_a_move_that_was_chosen_for_the_size_of_before_is_refused() -> None:
    """Its instance is resized after its row was read, and before the row is locked."""
    here = await Cloud.with_instance()
    before = await here.row()
    await here.resized(FlavorChange(vcpus=4))
    store, read = here.worker.store, here.worker.store.instances

    async def reads_late(_query: InstanceQuery) -> list[InstanceRow]:
        store.instances = read  # type: ignore[method-assign]
        return [structs.replace(before, told=(await here.row()).told)]

    store.instances = reads_late  # type: ignore[method-assign, assignment]
    answer = must_be(BuildRejected, await here.resize(kind="migrate"))
    assert answer.reason == "it has just changed: ask again"


async def test_a_row_that_an_audit_mends_has_the_size_that_its_cell_has_confirmed() -> None:
    here = await Cloud.with_instance()
    assert isinstance(await here.resize(FlavorChange(vcpus=4)), InstancesFound)
    there = arrived(await here.row())
    of_cell: InstanceState = structs.replace(
        there.told,
        sequence=40,
        state="active",
        move=structs.replace(present(there.told.move), outcome="confirmed"),
    )
    after = present(mended(there, MendInstance(seen=there.told.sequence, instance=of_cell)))
    assert after.next_spec == b""
    spec = present(decoded(after.current_spec))
    assert dict(spec.amounts) == {**WEB_AMOUNTS, "VCPU": 4}
    # An audit that has read the row before its last change mends nothing.
    assert mended(there, MendInstance(seen=there.told.sequence - 1, instance=of_cell)) is None
    still = present(
        mended(
            there, MendInstance(seen=there.told.sequence, instance=structs.replace(there.told, sequence=40))
        )
    )
    assert still.next_spec == there.next_spec != b""
