"""Past decisions explained from the rows, and plans to drain a host."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    ClaimRefused,
    InstanceActive,
    InstanceState,
    Rebuild,
)
from bus.messages.planning import (
    AskDrain,
    AskExplanation,
    DrainedInstance,
    DrainFound,
    Explanation,
    ExplanationsFound,
)
from bus.workers.handling import Answer, ReadOnly
from engine.choosing.choosing import Chosen, choose
from engine.choosing.verdicts import Holds, OtherHost
from engine.flavors import Flavor, Image, InstanceId, JoinedGroup, RequestId
from engine.inventories import ConsumerId, GroupId, ServerGroup
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from scheduler_worker import questions
from scheduler_worker.core.instances.history import decoded, encoded
from scheduler_worker.core.instances.lifecycle import heard
from scheduler_worker.core.instances.rows import (
    DELETED,
    ERROR,
    HostDecision,
    InstanceRow,
    Timeouts,
    accepted,
    after_search,
)
from scheduler_worker.questions import Explainer
from scheduler_worker.requests.reading import RequestReader, Search, ValidRequest, with_groups
from scheduler_worker.store import KnownGroup, NewRequest
from scheduler_worker.wiring import STANDARD
from tests.plugins import standard_plugins
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_spec, a_state, asks_no_quota, vcpus
from tests.unit.scheduler.test_scheduler_handlers import an_ask

M = TypeVar("M", bound=Message)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
PLUGINS = standard_plugins(io_ops_max=0)
BUILD = BuildInstance(
    request_id=RequestId(UUID(int=1000)), flavor=Flavor(vcpus=1), name="web", project="shop"
)


def a_row(number: int, spec: InstanceSpec | None = None, **told: object) -> InstanceRow:
    request = structs.replace(BUILD, request_id=RequestId(UUID(int=1000 + number)))
    kept = b"" if spec is None else encoded(spec)
    (row,) = accepted(request, [InstanceId(ConsumerId(UUID(int=number)))], NOON, LATER, kept)
    where = {"cell": "c1"} if told.get("host") else {}
    return structs.replace(row, told=structs.replace(row.told, **where | told))


def granted(chosen: Chosen) -> Holds:
    search = Search(InstanceId(ConsumerId(UUID(int=1))), NOON, BUILD, a_spec())
    search.chosen = chosen
    search.granted()
    assert isinstance(search.outcome, Holds)
    return search.outcome


def placed_row(picture: Picture, number: int = 1) -> InstanceRow:
    """A row whose host was chosen and claimed."""
    (chosen,) = choose(picture, [a_spec()], PLUGINS, salt=0)
    assert isinstance(chosen, Chosen)
    holds = granted(chosen)
    refusals = (ClaimRefused(host="h0", reason="its shape moved"),)
    row = after_search(a_row(number, a_spec()), BUILD, holds, refusals, LATER, timeouts=Timeouts(1, 1))
    assert row is not None
    return row


async def a_store(rows: Sequence[InstanceRow]) -> MemorySchedulerStore:
    store = MemorySchedulerStore()
    async with store.transaction() as transaction:
        await transaction.accept([NewRequest(row.told.request_id, b"", (row,)) for row in rows])
    return store


async def asked(question: Message, kind: type[M], picture: Picture, *rows: InstanceRow) -> M:
    explainer = Explainer(await a_store(rows), picture, PLUGINS, asks_no_quota)
    handler = explainer.question_handlers()[type(question)]
    assert isinstance(handler, ReadOnly)
    (answer,) = await handler.handle([an_ask(question)])
    assert isinstance(answer, Answer)
    assert isinstance(answer.message, kind), answer.message
    return answer.message


def three() -> Picture:
    return a_picture(
        a_state("full", vcpus(1, used=1)),
        *(a_state(f"h{free}", vcpus(9, used=9 - free)) for free in (3, 2, 1)),
    )


def test_a_placed_row_keeps_how_its_host_was_chosen() -> None:
    row = placed_row(three())

    assert row.decision == HostDecision(at=LATER, hosts=4, qualified=3, host="h3", alternates=("h2", "h1"))


def test_alternates_that_are_other_ways_of_one_host_are_named_once() -> None:
    (chosen,) = choose(three(), [a_spec()], PLUGINS, salt=0)
    assert isinstance(chosen, Chosen)
    twice = structs.replace(chosen, alternates=(*chosen.alternates, *chosen.alternates))
    holds = granted(twice)

    row = after_search(a_row(1), BUILD, holds, (), LATER, timeouts=Timeouts(1, 1))

    assert row is not None
    assert row.decision is not None
    assert row.decision.alternates == ("h2", "h1")


def test_a_search_that_goes_on_with_an_alternate_keeps_how_many_qualified() -> None:
    (chosen,) = choose(three(), [a_spec()], PLUGINS, salt=0)
    assert isinstance(chosen, Chosen)
    search = Search(InstanceId(ConsumerId(UUID(int=1))), NOON, BUILD, a_spec())
    search.chosen = chosen

    search.refused(OtherHost("no room"), shape_tries_max=4, claims_max=12)

    assert search.chosen is not None
    assert (search.chosen.choice.name, search.chosen.hosts, search.chosen.qualified) == ("h2", 4, 3)


def test_what_a_cell_reports_later_leaves_the_decision() -> None:
    row = placed_row(three())
    said = InstanceState(
        id=row.id, request_id=row.told.request_id, sequence=9, state="active", host="h2", attempt=2
    )

    now = heard(row, InstanceActive(cell="c1", instance=said), LATER)

    assert now is not None
    assert (now.told.host, now.decision, now.spec) == ("h2", row.decision, row.spec)


@pytest.mark.asyncio
async def test_an_explanation_tells_the_choice_the_refusals_and_the_alternates() -> None:
    row = placed_row(three())

    (explained,) = (await asked(about(1), ExplanationsFound, three(), row)).explanations

    assert explained == Explanation(
        state=row.told, chosen_at=LATER, hosts=4, qualified=3, chosen="h3", alternates=("h2", "h1")
    )
    assert explained.state.refusals == (ClaimRefused(host="h0", reason="its shape moved"),)


@pytest.mark.asyncio
async def test_an_instance_without_a_host_is_explained_by_its_funnel() -> None:
    funnel = NoValidHost(hosts=4, steps=())
    row = a_row(1, state=ERROR, no_valid_host=funnel)

    found = await asked(AskExplanation(request_id=row.told.request_id), ExplanationsFound, three(), row)

    assert found.explanations == (Explanation(state=row.told),)
    assert found.plan is None


@pytest.mark.asyncio
async def test_the_same_needs_are_planned_as_of_now_if_that_is_asked() -> None:
    question = structs.replace(about(1), plan_now=True)

    known = await asked(question, ExplanationsFound, three(), a_row(1, a_spec(3)))
    unknown = await asked(question, ExplanationsFound, three(), a_row(1))
    not_asked = await asked(about(1), ExplanationsFound, three(), a_row(1, a_spec(3)))

    assert known.plan is not None
    assert (known.plan.fit, unknown.plan, not_asked.plan) == (1, None, None)


@pytest.mark.asyncio
async def test_instances_of_another_project_are_not_explained() -> None:
    row = a_row(1)

    mine = await asked(structs.replace(about(1), project="shop"), ExplanationsFound, three(), row)
    others = await asked(structs.replace(about(1), project="bank"), ExplanationsFound, three(), row)

    assert (len(mine.explanations), others.explanations) == (1, ())


@pytest.mark.asyncio
async def test_explanations_come_in_pages() -> None:
    build = structs.replace(BUILD, count=3)
    ids = [InstanceId(ConsumerId(UUID(int=number))) for number in (1, 2, 3)]
    rows = accepted(build, ids, NOON, LATER)
    store = MemorySchedulerStore()
    async with store.transaction() as transaction:
        await transaction.accept([NewRequest(rows[0].told.request_id, b"", rows)])
    handler = Explainer(store, three(), PLUGINS, asks_no_quota).question_handlers()[AskExplanation]
    assert isinstance(handler, ReadOnly)

    pages = []
    question = AskExplanation(request_id=build.request_id, limit=2)
    while True:
        (answer,) = await handler.handle([an_ask(question)])
        assert isinstance(answer, Answer)
        assert isinstance(answer.message, ExplanationsFound)
        pages.append([each.state.id for each in answer.message.explanations])
        if answer.message.next is None:
            break
        question = structs.replace(question, after=answer.message.next)

    assert pages == [ids[:2], ids[2:]]


@pytest.mark.asyncio
async def test_a_question_about_nothing_is_refused() -> None:
    answer = await asked(AskExplanation(), BuildRejected, three())

    assert (answer.field, answer.reason) == (*("request_id", "give it or instance: nothing is asked about"),)


def test_a_kept_spec_is_read_back_and_one_that_cannot_be_read_is_unknown() -> None:
    spec = structs.replace(a_spec(3), required=("A",), groups=(GranularGroup("1", (("VCPU", 2),)),))

    assert decoded(encoded(spec)) == spec
    assert len(encoded(a_spec())) < 30
    assert decoded(b"") is None
    assert decoded(msgspec.msgpack.encode({"amounts": 7})) is None


@pytest.mark.asyncio
async def test_the_kept_spec_has_the_group_that_the_request_joins() -> None:
    group = ServerGroup(id=GroupId(UUID(int=5)), policy="anti-affinity", max_per_host=2)
    store = MemorySchedulerStore()
    async with store.transaction() as transaction:
        await transaction.create_group(KnownGroup(definition=group, project="shop"))
    build = structs.replace(BUILD, group=JoinedGroup(id=group.id))
    read = RequestReader(STANDARD, timedelta(days=1), PLUGINS).read(an_ask(build), NOON)
    assert isinstance(read, ValidRequest)

    (joined,) = await with_groups(store, [read])

    assert joined.spec.server_group == group
    assert decoded(joined.spec_bytes) == joined.spec


# Draining


@pytest.mark.asyncio
async def test_the_instances_of_a_host_are_placed_elsewhere_all_together() -> None:
    # One fits on h3 and one on h2; the drained host itself has room, too, and does not count.
    picture = a_picture(
        *(a_state(f"h{free}", vcpus(9, used=9 - free)) for free in (3, 2, 1)), a_state("old", vcpus(90))
    )
    rows = [a_row(number, a_spec(2), state="active", host="old") for number in range(1, 5)]

    found = await asked(AskDrain(host="old"), DrainFound, picture, *rows)

    assert sorted(each.to for each in found.instances[:2]) == ["h2", "h3"]
    assert [each.to for each in found.instances[2:]] == ["", ""]
    assert (found.fit, found.more) == (2, False)
    assert found.instances[2].reason == (
        "no host among 4: 1 removed by asked hosts (old: is to be ignored), "
        "3 removed by capacity (h3: VCPU asked 2, free 1 of 9)"
    )


@pytest.mark.asyncio
async def test_only_instances_that_live_on_the_host_are_drained() -> None:
    image = Image(source="http://images/debian")
    failed = Rebuild(
        request_id=BUILD.request_id or RequestId(UUID(int=0)), number=1, image=image, ends_by=LATER
    )
    rows = [
        a_row(1, a_spec(), state="active", host="full"),
        a_row(2, a_spec(), state="active", host="h1"),
        a_row(3, a_spec(), state=DELETED, host="full"),
        a_row(4, a_spec(), state=ERROR, host="full"),
        a_row(5, a_spec(), state=ERROR, host="full", rebuild=failed),
        a_row(6, a_spec(), state="placed", host="full"),
    ]

    found = await asked(AskDrain(host="full"), DrainFound, three(), *rows)

    assert [each.id.int for each in found.instances] == [1, 5, 6]


@pytest.mark.asyncio
async def test_an_instance_whose_needs_are_not_known_says_so() -> None:
    found = await asked(AskDrain(host="full"), DrainFound, three(), a_row(1, state="active", host="full"))

    assert found.instances == (
        DrainedInstance(
            id=InstanceId(ConsumerId(UUID(int=1))),
            name="web",
            project="shop",
            reason="its needs are not known: it was requested before schedulers kept them",
        ),
    )
    assert found.fit == 0


@pytest.mark.asyncio
async def test_so_many_instances_are_planned_and_so_many_refusals_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "DRAINED_MAX", 12)
    rows = [a_row(number, a_spec(100 + number), state="active", host="full") for number in range(1, 14)]

    found = await asked(AskDrain(host="full"), DrainFound, three(), *rows)

    assert (len(found.instances), found.more) == (12, True)
    assert [each.reason for each in found.instances[10:]] == ["no host among 4"] * 2
    assert all(" removed by capacity " in each.reason for each in found.instances[:10])


@pytest.mark.asyncio
async def test_a_host_that_is_not_known_is_refused() -> None:
    for name in ("nowhere", "H"):
        answer = await asked(AskDrain(host=name), BuildRejected, a_picture(hosts=(a_host("h"),)))

        assert (answer.field, answer.value) == ("host", name)


def about(number: int) -> AskExplanation:
    return AskExplanation(instance=InstanceId(ConsumerId(UUID(int=number))))
