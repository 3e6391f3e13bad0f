"""What a project sees: counts, states and reasons, and no host but those that its own instances were given."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import (
    AskInstances,
    AttemptFailed,
    BuildRejected,
    CellHeard,
    ClaimRefused,
    InstanceActive,
    InstancesFound,
    InstanceState,
    InstanceWaiting,
    Move,
    Waiting,
)
from bus.messages.hosts import SetHostInCell
from bus.messages.moves import Change, HistoryFound
from bus.messages.planning import Explanation, ExplanationsFound, HostChoice, PlanFound
from bus.messages.projects import GroupsFound, GroupState, PlacedMember
from cell_conductor.core.rows import CellHost, HostStates
from cell_conductor.core.swapping import why_not
from engine.choosing.explaining import in_words, shortfalls_of
from engine.choosing.verdicts import after_refusal
from engine.flavors import FlavorPassedOver, InstanceId, RequestId
from engine.hosts import HostMode, HostSetting, HostState, why_not_enabled
from engine.inventories import Choice, ConsumerId, GroupId, PlaceRule, ProviderId, Share
from engine.refusals import (
    ClaimVerdict,
    DoesNotFit,
    ExhaustedPool,
    FunnelStep,
    GroupRefused,
    HostFull,
    Miss,
    NoValidHost,
    ShapeMoved,
    Shortfall,
)
from ironic_sync.core.deploying import Fail, Seen, next_step
from ironic_sync.core.node import Node
from ironic_sync.core.offers import against_maintenance
from scheduler_worker.applications import Applications
from scheduler_worker.core.project_view import in_public, seen_by_project
from tests.unit.ironic.deploys import OURS, a_deploy
from tests.unit.scheduler.lone_scheduler import LoneScheduler, an_ask

NOW = datetime(2026, 5, 1, tzinfo=UTC)
ID, REQUEST, HOST_ID = InstanceId(UUID(int=1)), RequestId(UUID(int=2)), ProviderId(UUID(int=77))
# Of each secret nothing may be told; the instance's own hosts are `mine` and `before`.
HOSTS = ("rack-7.example.org", "rack-8", "mine", "before", str(HOST_ID))
NOTE = "disk swap), 3 removed by pools (by ann; at noon"
SECRETS = (*HOSTS[:2], str(HOST_ID), "disk swap", "ann", "4242", "nas-1")
FUNNEL = NoValidHost(
    hosts=9,
    steps=(
        FunnelStep(step="room", removed=7, example="rack-8: VCPU asked 2, free 4242 of 9000"),
        FunnelStep(step="enabled", removed=2, example=f"rack-7.example.org: is draining: {NOTE}"),
    ),
    nearest=(Miss(host="rack-8", reason="VCPU asked 2, free 4242 of 9000"),),
    unknown=("no host has CUSTOM_GLOD; near it: CUSTOM_GOLD",),
)
STATE = InstanceState(
    id=ID,
    request_id=REQUEST,
    sequence=3,
    state="moving",
    cell="c1",
    host="mine",
    project="shop",
    reason=f"no valid host: {in_words(FUNNEL)}",
    failures=(
        AttemptFailed(attempt=1, host="before", reason="before: the image has no such format"),
        AttemptFailed(attempt=2, host="gone", reason="gone: VCPU asked 2, free 4242", is_refused=True),
    ),
    refusals=(ClaimRefused(host="rack-8", reason="VCPU asked 2, free 4242"),),
    no_valid_host=FUNNEL,
    waiting=Waiting(until=NOW, reason=in_words(FUNNEL)),
    move=Move(
        request_id=REQUEST,
        number=1,
        kind="migrate",
        source="before",
        destination="mine",
        ends_by=NOW,
        failure="others got the room: rack-8: VCPU asked 2, free 4242",
    ),
    passed_over=(FlavorPassedOver(flavor="gold", reason="no valid host", no_valid_host=FUNNEL),),
)
CHOICE = HostChoice(chosen="mine", hosts=9, qualified=4, alternates=("rack-8", "rack-7.example.org"))
PLAN = PlanFound(
    qualify=0,
    fit=0,
    is_cut=False,
    cells=(),
    funnel=FUNNEL,
    pools=(ExhaustedPool(pool="nas-1", resource="DISK_GB", asked=1, free=4242, capacity=9000, hosts=2),),
)
ANSWERS: Sequence[Message] = (
    InstanceActive(cell="c1", instance=STATE),
    InstanceWaiting(cell="c1", instance=STATE),
    InstancesFound(
        instances=(STATE,), cells=(CellHeard(cell="c1", life="down", reason="rack-8 by ann is away"),)
    ),
    PLAN,
    ExplanationsFound(
        explanations=(Explanation(state=STATE, boot=CHOICE, **structs.asdict(CHOICE)),), plan=PLAN
    ),
    HistoryFound(
        instance=STATE,
        changes=(
            Change(
                instance=ID,
                number=1,
                what="migrate",
                cell="c1",
                asked_at=NOW,
                source="before",
                destination="mine",
                failure=f"no valid host: {in_words(FUNNEL)}",
            ),
        ),
    ),
    BuildRejected(
        request_id=REQUEST, field="instance", value=str(ID), reason=in_words(FUNNEL), project="shop"
    ),
    GroupsFound(
        groups=(
            GroupState(
                id=GroupId(ID),
                policy="affinity",
                members=(PlacedMember(consumer=ConsumerId(ID), host="rack-8"),),
            ),
        )
    ),
)


def is_host(word: str) -> bool:
    return word in HOSTS


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda each: type(each).__name__)
def test_nothing_of_other_hosts_is_in_an_answer_for_a_project(answer: Message) -> None:
    told = msgspec.json.encode(answer).decode()
    shown = msgspec.json.encode(seen_by_project(answer, is_host)).decode()

    assert any(secret in told for secret in SECRETS)
    assert [secret for secret in (*SECRETS, "gone") if secret in shown] == []


def test_a_project_sees_its_state_its_own_hosts_the_counts_and_the_reasons() -> None:
    (shown,) = seen_by_project(InstancesFound(instances=(STATE,)), is_host).instances  # type: ignore[attr-defined]

    assert (shown.state, shown.host, shown.move.source, shown.move.destination) == (
        *("moving", "mine"),
        *("before", "mine"),
    )
    assert [(each.step, each.removed) for each in shown.no_valid_host.steps] == [("room", 7), ("enabled", 2)]
    assert shown.no_valid_host.unknown == FUNNEL.unknown
    assert shown.reason.startswith("no valid host: no host among 9: 7 removed by room, 2 removed by enabled")
    assert [(each.host, each.reason) for each in shown.failures] == [
        ("before", "before: the image has no such format"),
        ("", "a host: VCPU asked 2, has less"),
    ]
    assert shown.move.failure == "others got the room: a host: VCPU asked 2, has less"


def test_what_names_no_other_host_stays_as_it_is() -> None:
    plain = InstanceState(
        id=ID, request_id=REQUEST, sequence=1, state="active", cell="c1", host="mine", project="shop"
    )
    event = InstanceActive(cell="c1", instance=plain)

    assert seen_by_project(event, is_host) is event
    for text in (
        "over the quota of project shop: VCPU limit 3, used 2, asked 2",
        "the guest's image could not be fetched: 404 (not found)",
        "no valid host",
    ):
        assert in_public(text, is_host) == text


SHORT = Shortfall(provider=HOST_ID, resource="VCPU", asked=2, free=4242)
VERDICTS: Sequence[ClaimVerdict] = (
    DoesNotFit((SHORT,)),
    DoesNotFit((structs.replace(SHORT, rule="max_unit", bound=4242),)),
    DoesNotFit((), HostFull(host=HOST_ID, instances=4242, instances_max=4242)),
    GroupRefused(
        group=GroupId(ID), policy="affinity", host=HOST_ID, members=(ConsumerId(UUID(int=4242)),), count=1
    ),
    GroupRefused(
        group=GroupId(ID),
        policy="anti-affinity",
        host=HOST_ID,
        members=(ConsumerId(ID),),
        count=4242,
        rule=PlaceRule(level=2, policy="anti-affinity"),
        domain="dc1/rack-8",
    ),
    ShapeMoved(roots=(HOST_ID,)),
)
HOST = HostState(id=HOST_ID, name="rack-8", cell="c1", up=True)


@pytest.mark.parametrize(
    "text",
    [
        *(why_not(each) for each in VERDICTS),  # type: ignore[arg-type]
        *(getattr(after_refusal(each, lambda _: "rack-8"), "reason", "") for each in VERDICTS),
        *shortfalls_of("VCPU", 5000, (9000, 1, 9000, 1), 4242),
        *(
            f"rack-8 {why_not_enabled(structs.replace(HOST, setting=HostSetting(mode=mode, reason=NOTE)))}"
            for mode in ("draining", "down", "dead")
        ),
        f"no valid host: it waited 9 s for room, until {NOW}: {in_words(FUNNEL)}",
        "12 claims were refused, and no more are tried; the last: rack-8: VCPU asked 2, free 4242, MEMORY_MB asked 9, free 4242",
        "hosts is 'rack-9': no host of this name is known; near it: rack-8, rack-7.example.org",
        "c1/rack-9: no host of this name is known; near it: c1/rack-8",
        "it is on host rack-8 already; c1/rack-7.example.org is in cell c2",
    ],
)
def test_each_form_of_a_reason_loses_the_names_the_amounts_and_the_notes(text: str) -> None:
    assert [secret for secret in SECRETS if secret in in_public(text, is_host)] == []


def causes() -> Iterator[str]:
    """Why an attempt on the instance's own host has ended, as conductors and daemons say it, with what an operator has noted."""
    choice = Choice(name="mine", share=Share(host=HOST_ID, amounts=()))
    modes: tuple[HostMode, ...] = ("draining", "down", "dead")
    for number, mode in enumerate(modes, 1):
        word = SetHostInCell(
            cell="c1", host=HOST_ID, name="mine", setting=HostSetting(mode=mode, reason=NOTE, number=number)
        )
        yield HostStates(set={HOST_ID.int: CellHost(word=word)}).why_not_next(choice)
    node = Node(id=HOST_ID, maintenance=True, maintenance_reason=NOTE, provision_state="active")
    yield against_maintenance(node)
    waits = structs.replace(node, instance_uuid=OURS, provision_state="wait call-back")
    deployed = next_step(a_deploy(), Seen(waits))
    assert isinstance(deployed, Fail)
    yield deployed.reason


@pytest.mark.parametrize("cause", [*causes()])
def test_a_failed_build_begins_with_its_cause_and_not_with_what_an_operator_has_noted_of_it(
    cause: str,
) -> None:
    assert NOTE in cause
    told = seen_by_project(
        InstanceActive(
            cell="c1",
            instance=structs.replace(
                STATE,
                reason=f"{cause}; no alternate is left",
                failures=(AttemptFailed(attempt=1, host="mine", reason=cause),),
                move=None,
            ),
        ),
        is_host,
    )

    written = msgspec.json.encode(told).decode()
    assert [secret for secret in ("disk swap", "by ann", "at noon") if secret in written] == []
    assert isinstance(told, InstanceActive)
    assert told.instance.reason == told.instance.failures[0].reason == cause.partition(":")[0]


@pytest.mark.parametrize(
    ("sender", "for_member", "is_projects"),
    [
        ("moor-operator", False, False),
        ("moor-keeper", False, False),
        ("moor-app-local", False, False),
        ("moor-app-shop", False, True),
        ("moor-operator", True, True),
    ],
)
def test_only_answers_for_projects_are_such_as_a_project_sees(
    sender: str, *, for_member: bool, is_projects: bool
) -> None:
    lone = LoneScheduler()
    applications = Applications(
        lone.store, lone.station.publisher, 60, lambda: NOW, is_host=lone.picture.is_host
    )
    ask = structs.replace(an_ask(AskInstances(for_member=for_member)), sender=sender)
    assert applications.is_for_project(ask) is is_projects
