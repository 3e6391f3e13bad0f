"""What follows for campaigns, their hosts and movements from what schedulers tell."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildRejected, InstancesFound, InstanceState, Move
from bus.messages.keeping import CampaignHost, CampaignId, CampaignState, CampaignWork, Movement, MovementId
from bus.messages.moves import MoveWait
from bus.messages.planning import DrainedInstance
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import ConsumerId, ProviderId
from engine.refusals import TOGETHER_MAX
from keeper.core.campaigns import (
    SECONDS_MAX,
    after_answer,
    after_look,
    as_planned,
    ends_as,
    hosts_to_begin,
    order_for,
    returned,
    wrong_work,
)

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
INSTANCE, REQUEST = InstanceId(ConsumerId(UUID(int=1))), RequestId(UUID(int=2))
WORK = CampaignWork(hosts=("h1",))


def movement(**fields: Any) -> Movement:
    known: dict[str, Any] = {
        "instance": INSTANCE,
        "life": "moving",
        "to": "h2",
        "request_id": REQUEST,
        "asked_at": NOON,
    } | fields
    return Movement(
        id=MovementId(UUID(int=3)),
        campaign=CampaignId(UUID(int=4)),
        cause="campaign spring",
        cell="c1",
        host="h1",
        **known,
    )


def told(state: str = "active", host: str = "h1", request: RequestId = REQUEST, **move: Any) -> InstanceState:
    made = Move(request_id=request, number=1, kind="migrate", source="h1", ends_by=NOON, **move)
    return InstanceState(
        id=INSTANCE, request_id=REQUEST, sequence=5, state=state, cell="c1", host=host, move=made
    )


OTHER = RequestId(UUID(int=9))


@pytest.mark.parametrize(
    ("seen", "life", "reason"),
    [
        (told("moving"), "moving", ""),
        (told(host="h2", outcome="confirmed"), "done", ""),
        (told("stopped", host="h2", outcome="done"), "done", ""),
        (told(outcome="failed", failure="no room"), "planned", "no room"),
        (told(outcome="aborted"), "planned", "aborted"),
        (told("deleting"), "withdrawn", "deleted"),
        (None, "withdrawn", "deleted"),
        (told("moving", request=OTHER), "planned", "another order came first"),
        (
            told(host="h7", request=OTHER, outcome="confirmed"),
            "withdrawn",
            "another order has moved it to h7",
        ),
    ],
)
def test_what_moves_is_followed_until_it_has_arrived_failed_or_is_somebody_elses(
    seen: InstanceState | None, life: str, reason: str
) -> None:
    after = after_look(movement(), seen, NOON)

    assert after.life == life
    assert reason in after.reason
    assert (after.ended_at is None) is (life in ("planned", "moving"))
    assert after.failures == (
        seen is not None and seen.move is not None and seen.move.outcome in ("failed", "aborted")
    )


def test_after_three_failures_it_is_left_alone() -> None:
    seen = told(outcome="failed", failure="broken")
    assert after_look(movement(failures=1), seen, NOON).life == "planned"
    left = after_look(movement(failures=2), seen, NOON)
    assert (left.life, left.failures, left.reason) == ("given_up", 3, "broken")


@pytest.mark.parametrize(
    ("answer", "life", "failures"),
    [
        (InstancesFound(instances=()), "moving", 0),
        (
            BuildRejected(request_id=None, field="moves_per_host_max", value="", reason="too many"),
            "planned",
            0,
        ),
        (BuildRejected(request_id=None, field="instance", value="", reason="it is busy"), "planned", 1),
        (BuildRejected(request_id=None, field="source", value="h1", reason="it is on h9"), "withdrawn", 0),
    ],
)
def test_the_answer_to_its_order_says_whether_it_moves(answer: Message, life: str, failures: int) -> None:
    granted = movement(life="granted")
    after = after_answer(granted, answer, NOON)
    assert (after.life, after.failures) == (life, failures)
    assert after_answer(after, answer, NOON) == after


@pytest.mark.parametrize(
    ("plan", "work", "is_alone", "wanted"),
    [
        ({"to": "h2", "place": "dc/r2"}, WORK, True, {"life": "planned", "to": "h2", "to_place": "dc/r2"}),
        (
            {"reason": "busy: it is moving"},
            WORK,
            True,
            {"life": "planned", "reason": "it is moving", "failures": 0},
        ),
        ({"reason": "full"}, WORK, False, {"life": "planned", "reason": "full", "failures": 0}),
        ({"reason": "full"}, WORK, True, {"life": "planned", "reason": "full", "failures": 1}),
        (
            {"reason": "full"},
            CampaignWork(wait_s=60),
            True,
            {"life": "planned", "reason": "no room: full", "failures": 0},
        ),
    ],
)
def test_a_plan_gives_it_a_host_or_says_why_it_waits(
    plan: dict[str, Any], work: CampaignWork, *, is_alone: bool, wanted: dict[str, Any]
) -> None:
    planned = movement(life="planned", to="", request_id=None)
    after = as_planned(planned, DrainedInstance(id=INSTANCE, **plan), work, NOON, is_alone=is_alone)
    assert {name: getattr(after, name) for name in wanted} == wanted
    assert after.kind == "live-migrate"
    again = as_planned(
        structs.replace(planned, failures=1), DrainedInstance(id=INSTANCE, to="h2"), work, NOON, is_alone=True
    )
    assert again.kind == "migrate"


def test_an_order_names_where_from_where_to_and_who_leaves_together() -> None:
    one = order_for([movement()], WORK, NOON)
    assert (one.hosts, one.source, one.together, one.wait, one.for_user) == (
        ("c1/h2",),
        "c1/h1",
        (),
        MoveWait(for_s=0),
        "campaign spring",
    )
    other = movement(instance=InstanceId(ConsumerId(UUID(int=8))), together=True)
    assert order_for([movement(together=True), other], WORK, NOON).together == (other.instance,)
    assert order_for([movement(together=True)] * TOGETHER_MAX, WORK, NOON).with_group
    waits = order_for([movement(to="")], CampaignWork(to=("h5",), wait_s=60), NOON + timedelta(seconds=20))
    assert waits.wait is not None
    assert (waits.hosts, waits.wait.for_s) == (("h5",), 40)


def host(number: int = 1, **fields: Any) -> CampaignHost:
    return CampaignHost(id=ProviderId(UUID(int=number)), host=f"h{number}", cell="c1", **fields)


@pytest.mark.parametrize(
    ("work", "out", "done", "begin"),
    [
        (CampaignWork(at_once=2), 0, 0, 2),
        (CampaignWork(at_once=2), 1, 0, 1),
        (CampaignWork(at_once=2), 2, 0, 0),
        (CampaignWork(at_once=3, canary=1), 0, 0, 1),
        (CampaignWork(at_once=3, canary=1), 1, 0, 0),
        (CampaignWork(at_once=3, canary=1), 0, 1, 3),
        (CampaignWork(at_once=3, canary=2), 0, 1, 1),
    ],
)
def test_so_many_hosts_begin_as_may_be_out(work: CampaignWork, out: int, done: int, begin: int) -> None:
    assert len(hosts_to_begin(work, out, [host(number) for number in range(9)], done)) == begin


@pytest.mark.parametrize(
    ("work", "stages", "life"),
    [
        (CampaignWork(), {"done": 1, "waiting": 1}, "running"),
        (CampaignWork(), {"done": 2}, "done"),
        (CampaignWork(), {"failed": 1, "waiting": 1}, "stopped"),
        (CampaignWork(failures_max=2), {"failed": 1, "emptying": 1}, "running"),
        (CampaignWork(failures_max=2), {"failed": 1, "done": 1}, "done"),
        (CampaignWork(failures_max=9, canary=2), {"failed": 1, "done": 1, "waiting": 4}, "stopped"),
        (CampaignWork(failures_max=9, canary=1), {"failed": 1, "done": 1, "waiting": 4}, "running"),
    ],
)
def test_a_campaign_ends_with_its_hosts_or_stops_after_failures(
    work: CampaignWork, stages: dict[str, int], life: str
) -> None:
    made = CampaignState(id=CampaignId(UUID(int=4)), name="spring", work=work)
    assert ends_as(made, stages).life == life
    cancelled = structs.replace(made, life="cancelled")
    assert ends_as(cancelled, stages) == cancelled


@pytest.mark.parametrize(
    ("seen", "after_s", "stage"),
    [
        ({"heard_at": NOON + timedelta(seconds=5)}, 10, "done"),
        ({"heard_at": NOON - timedelta(seconds=5)}, 10, "returning"),
        ({"heard_at": NOON + timedelta(seconds=5), "must_clean": True}, 10, "returning"),
        ({"heard_at": NOON + timedelta(seconds=5), "report_refused": "its tree"}, 10, "returning"),
        ({"heard_at": NOON + timedelta(seconds=5), "report_refused": "its tree"}, 90, "failed"),
        ({"heard_at": NOON - timedelta(seconds=5)}, 90, "failed"),
        (None, 90, "failed"),
    ],
)
def test_a_host_is_taken_back_when_it_was_heard_since_its_hook_and_is_whole(
    seen: dict[str, Any] | None, after_s: int, stage: str
) -> None:
    state = (
        None if seen is None else HostState(id=ProviderId(UUID(int=1)), name="h1", cell="c1", up=True, **seen)
    )
    waits = host(stage="returning", stage_at=NOON)
    assert returned(waits, state, CampaignWork(whole_s=60), NOON + timedelta(seconds=after_s)).stage == stage


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("work.at_once", {"at_once": 0}),
        ("work.guests_at_once", {"guests_at_once": 0}),
        ("work.failures_max", {"failures_max": -1}),
        ("work.canary", {"canary": -1}),
        ("work.wait_s", {"wait_s": SECONDS_MAX + 1}),
        ("work.hook_s", {"hook_s": 0}),
        ("work.whole_s", {"whole_s": 0}),
        ("work.hosts", {"place": "dc1"}),
        ("work.hosts", {"hosts": ()}),
        ("work.hook", {"hook": "reboot"}),
        ("work.hook", {"kind": "restart"}),
    ],
)
def test_wrong_work_is_refused_by_its_field(field: str, wrong: dict[str, Any]) -> None:
    found = wrong_work(structs.replace(WORK, **wrong))
    assert found is not None
    assert found[0] == field
    assert wrong_work(WORK) is None
