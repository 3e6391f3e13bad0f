"""An instance whose request accepts several flavors: the cell goes on with another one when no host can build the first."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import InstanceActive, Move, Rebuild
from bus.messages.cell import (
    DeployInstance,
    DestroyInstance,
    InstanceSpawned,
    MoreAlternates,
    MoveInCell,
    PlaceInCell,
    RebuildInCell,
    ReceiveInstance,
    RedeployInstance,
    RemoveFromCell,
    RespawnInstance,
    SpawnFailed,
    SpawnInstance,
    UndeployInstance,
)
from bus.messages.placement import SwapClaim
from cell_conductor.core.decide import Decision, Due, Input, decide
from cell_conductor.core.rows import SwapAnswered
from cell_conductor.settings import ConductorSettings
from cell_conductor.store_sql import assemble_row, decode_body, encode_body
from cell_conductor.wiring import rules_of
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.hosts import NODE
from engine.inventories import Choice, ConsumerId, ProviderId, ResourceAmount, Share
from engine.refusals import AlreadyClaimed, Claimed, DoesNotFit
from tests.unit.conductor.cell import drawing

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = rules_of(ConductorSettings(attempt_timeout_s=60, deploy_timeout_s=600), "c1", timedelta(seconds=60))
INSTANCE = InstanceId(ConsumerId(UUID(int=1)))
GOLD = Flavor(name="gold", extra_specs={"resources:CUSTOM_GOLD": "1"})
SILVER = Flavor(name="silver", extra_specs={"resources:CUSTOM_SILVER": "1"})
VM = Flavor(name="vm", vcpus=2)


def a_choice(number: int, resource: str, amount: int, kind: str) -> Choice:
    host = ProviderId(UUID(int=100 + number))
    amounts = (ResourceAmount(provider=host, resource=resource, amount=amount),)
    return Choice(name=f"h{number}", share=Share(host=host, amounts=amounts), kind=kind)


NODE_1 = a_choice(1, "CUSTOM_GOLD", 1, NODE)
NODE_2 = a_choice(2, "CUSTOM_GOLD", 1, NODE)
NODE_3 = a_choice(3, "CUSTOM_SILVER", 1, NODE)
HOST_4 = a_choice(4, "VCPU", 2, "")
HOST_5 = a_choice(5, "VCPU", 2, "")
LARGE = Flavor(name="large", vcpus=6)
LARGE_ON_4 = a_choice(4, "VCPU", 6, "")
LARGE_ON_6 = a_choice(6, "VCPU", 6, "")
REFUSED = DoesNotFit(shortfalls=())
ORDER = PlaceInCell(
    cell="c1",
    instance=INSTANCE,
    request_id=RequestId(UUID(int=2)),
    sequence=2,
    attempt=1,
    issued_at=NOON,
    ends_by=NOON + timedelta(hours=2),
    flavor=GOLD,
    chosen=NODE_1,
    alternates=(NODE_2, NODE_3, HOST_4),
    image=Image(source="debian"),
    tells_flavor=True,
    other_flavors={NODE_3.share.host: SILVER, HOST_4.share.host: VM},
)


class Cell:
    """One instance's row, and all that the conductor has said of it."""

    def __init__(self, order: PlaceInCell) -> None:
        self.said: list[Message] = []
        self.draw = drawing()
        first = decide({}, [order], NOON, RULES, draw=self.draw)
        (self.row,) = first.rows
        self.said += [each.message for each in first.said]

    def tell(self, each: Input) -> Decision:
        decision = decide({INSTANCE: self.row}, [each], NOON, RULES, draw=self.draw)
        for row in decision.rows:
            # As a store keeps it.
            self.row = assemble_row(decode_body(encode_body(row)), row.order)
            assert self.row == row
        self.said += [each.message for each in decision.said]
        return decision

    def fail(self, host: Choice, attempt: int) -> SwapClaim:
        """The host fails, and the claim of the next alternate is granted."""
        self.tell(
            SpawnFailed(cell="c1", instance=INSTANCE, attempt=attempt, host=host.share.host, reason="no")
        )
        (swap,) = self.tell(Due(INSTANCE)).swaps
        assert isinstance(swap, SwapClaim)
        self.tell(SwapAnswered(INSTANCE, swap, Claimed()))
        return swap

    @property
    def spawns(self) -> list[SpawnInstance]:
        return [each for each in self.said if isinstance(each, SpawnInstance)]

    def more(self, *alternates: Choice, flavor: Flavor) -> None:
        """The API level gives these further alternates."""
        more = MoreAlternates(
            cell="c1",
            instance=INSTANCE,
            spent=self.row.spent,
            sequence=self.row.spent,
            alternates=alternates,
            flavor=flavor,
        )
        self.tell(more)

    def spawned(self, host: Choice, attempt: int) -> Message:
        self.tell(
            InstanceSpawned(
                cell="c1", instance=INSTANCE, attempt=attempt, host=host.share.host, kind=host.kind
            )
        )
        return self.said[-1]


def test_the_states_tell_the_flavor_that_the_scheduler_chose() -> None:
    told = Cell(ORDER).spawned(NODE_1, 1)

    assert isinstance(told, InstanceActive)
    assert told.instance.flavor == GOLD


def test_of_a_request_with_one_flavor_no_state_tells_it() -> None:
    told = Cell(structs.replace(ORDER, tells_flavor=False, other_flavors={})).spawned(NODE_1, 1)

    assert isinstance(told, InstanceActive)
    assert told.instance.flavor is None


def test_each_alternate_is_ordered_with_its_own_flavor_share_and_kind() -> None:
    cell = Cell(ORDER)
    swaps = [cell.fail(host, attempt) for attempt, host in enumerate((NODE_1, NODE_2, NODE_3), 1)]

    assert [swap.share for swap in swaps] == [each.share for each in (NODE_2, NODE_3, HOST_4)]
    orders = [each for each in cell.said if isinstance(each, DeployInstance | SpawnInstance)]
    assert [(type(each), each.flavor, each.share) for each in orders] == [
        (DeployInstance, GOLD, NODE_1.share),
        (DeployInstance, GOLD, NODE_2.share),
        (DeployInstance, SILVER, NODE_3.share),
        (SpawnInstance, VM, HOST_4.share),
    ]
    assert {each.image for each in orders} == {ORDER.image}
    told = cell.spawned(HOST_4, 4)
    assert isinstance(told, InstanceActive)
    assert (told.instance.flavor, told.instance.host) == (VM, "h4")


def test_each_kind_of_host_has_its_own_time() -> None:
    cell = Cell(ORDER)
    assert cell.row.state_ends_at == NOON + timedelta(seconds=600)
    for attempt, host in enumerate((NODE_1, NODE_2, NODE_3), 1):
        cell.fail(host, attempt)
    assert cell.row.state_ends_at == NOON + timedelta(seconds=60)


def built_as_vm() -> Cell:
    cell = Cell(ORDER)
    for attempt, host in enumerate((NODE_1, NODE_2, NODE_3), 1):
        cell.fail(host, attempt)
    cell.spawned(HOST_4, 4)
    return cell


def test_a_rebuild_keeps_the_flavor_that_it_got() -> None:
    cell = built_as_vm()

    rebuild = Rebuild(
        request_id=RequestId(UUID(int=9)), number=90, image=Image(source="new"), ends_by=ORDER.ends_by
    )
    cell.tell(RebuildInCell(cell="c1", instance=INSTANCE, rebuild=rebuild))

    order = cell.said[-1]
    assert isinstance(order, RespawnInstance)
    assert (order.flavor, order.share) == (VM, HOST_4.share)


def test_a_rebuild_on_a_node_keeps_the_flavor_of_that_node() -> None:
    cell = Cell(ORDER)
    cell.fail(NODE_1, 1)
    cell.fail(NODE_2, 2)
    cell.spawned(NODE_3, 3)

    rebuild = Rebuild(
        request_id=RequestId(UUID(int=9)), number=90, image=Image(source="new"), ends_by=ORDER.ends_by
    )
    cell.tell(RebuildInCell(cell="c1", instance=INSTANCE, rebuild=rebuild))

    order = cell.said[-1]
    assert isinstance(order, RedeployInstance)
    assert order.flavor == SILVER


def test_a_move_keeps_the_flavor_that_it_got() -> None:
    cell = built_as_vm()
    move = Move(
        request_id=RequestId(UUID(int=9)),
        number=90,
        kind="live-migrate",
        source="h4",
        ends_by=ORDER.ends_by,
    )

    cell.tell(MoveInCell(cell="c1", instance=INSTANCE, move=move, choices=(HOST_5,)))
    (swap,) = cell.tell(Due(INSTANCE)).swaps
    cell.tell(SwapAnswered(INSTANCE, swap, Claimed()))

    order = cell.said[-1]
    assert isinstance(order, ReceiveInstance)
    assert (order.flavor, order.share) == (VM, HOST_5.share)
    told = cell.spawned(HOST_5, 5)
    assert any(isinstance(each, InstanceActive) and each.instance.flavor == VM for each in (told, *cell.said))


def test_a_late_success_of_the_node_is_undone_and_a_delete_goes_to_the_hypervisor() -> None:
    cell = built_as_vm()

    cell.spawned(NODE_1, 1)
    late = cell.said[-1]
    cell.tell(
        RemoveFromCell(cell="c1", instance=INSTANCE, request_id=ORDER.request_id, sequence=99, issued_at=NOON)
    )

    assert isinstance(late, UndeployInstance)
    destroy = cell.said[-1]
    assert isinstance(destroy, DestroyInstance)
    assert destroy.host == HOST_4.share.host


def test_a_further_alternate_is_ordered_with_the_flavor_that_it_was_chosen_for() -> None:
    order = structs.replace(
        ORDER,
        flavor=LARGE,
        chosen=LARGE_ON_6,
        alternates=(HOST_4,),
        other_flavors={HOST_4.share.host: VM},
        may_ask=True,
    )
    cell = Cell(order)
    cell.tell(
        SpawnFailed(cell="c1", instance=INSTANCE, attempt=1, host=LARGE_ON_6.share.host, reason="no disk")
    )
    (swap,) = cell.tell(Due(INSTANCE)).swaps
    cell.tell(SwapAnswered(INSTANCE, swap, REFUSED))

    cell.more(LARGE_ON_4, flavor=LARGE)
    (swap,) = cell.tell(Due(INSTANCE)).swaps
    cell.tell(SwapAnswered(INSTANCE, swap, Claimed()))

    assert (cell.spawns[-1].flavor, cell.spawns[-1].share) == (LARGE, LARGE_ON_4.share)


def test_a_further_alternate_that_only_a_worse_flavor_fits_is_ordered_with_it() -> None:
    cell = Cell(structs.replace(ORDER, flavor=LARGE, chosen=LARGE_ON_6, alternates=(), other_flavors={}))
    cell.row = structs.replace(cell.row, state="swapping", spent=5)

    cell.more(HOST_5, flavor=VM)
    (swap,) = cell.tell(Due(INSTANCE)).swaps
    cell.tell(SwapAnswered(INSTANCE, swap, Claimed()))

    assert (cell.spawns[-1].flavor, cell.spawns[-1].share) == (VM, HOST_5.share)


# The same after a reshape of the host.
VM_IN_A_CHILD = structs.replace(
    HOST_4.share,
    amounts=(ResourceAmount(provider=ProviderId(UUID(int=204)), resource="VCPU", amount=2),),
)


@pytest.mark.parametrize("held", [HOST_4.share, VM_IN_A_CHILD])
def test_a_late_claim_of_an_alternate_of_the_order_has_the_flavor_of_that_time(held: Share) -> None:
    order = structs.replace(
        ORDER,
        flavor=LARGE,
        chosen=LARGE_ON_6,
        alternates=(HOST_4,),
        other_flavors={HOST_4.share.host: VM},
    )
    cell = Cell(order)
    cell.row = structs.replace(cell.row, state="swapping", spent=5)

    cell.more(LARGE_ON_4, flavor=LARGE)
    (swap,) = cell.tell(Due(INSTANCE)).swaps
    cell.tell(SwapAnswered(INSTANCE, swap, AlreadyClaimed(attempt=2, share=held)))

    assert (cell.spawns[-1].flavor, cell.spawns[-1].share) == (VM, held)
