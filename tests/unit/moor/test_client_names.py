"""A name means the instance that lives; each method of the client takes names; an audit gives no room twice; and a console is read in parts,
each from where the last one ended.
"""

from collections.abc import Sequence
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import AskInstances, InstancesFound, InstanceState
from bus.messages.cell import AskConsole, ConsoleFound
from bus.messages.moves import AskHistory, HistoryFound
from bus.messages.planning import AskReasons, ReasonsFound
from bus.messages.projects import AskGroups, GroupsFound, GroupState
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import GroupId, InventoryState, ProviderId, ProviderState, ResourceAmount, Share
from moor.client import Ambiguous, NotFound, instances
from moor.client.books.views import Places, in_present_shape
from moor.client.instances import last_of_console, parts_of_console
from tests.asking import client_of
from tests.unit.examples.values import CONSUMER

# As many rows one question reads here.
READ_MAX = 10
GROUP = GroupId(UUID(int=900))


class Rows:
    """Answers for instances as a scheduler does: by the filters of a question, and from a bounded number of rows."""

    def __init__(self, *states: str, name: str = "web") -> None:
        self.rows = [
            InstanceState(
                id=InstanceId(UUID(int=number)),
                request_id=RequestId(UUID(int=number)),
                sequence=1,
                state=state,
                name=name,
            )
            for number, state in enumerate(states, 1)
        ]
        self.asked: list[Message] = []

    async def ask(self, question: Message) -> Message:
        self.asked.append(question)
        match question:
            case AskInstances():
                return self._page(question)
            case AskGroups():
                group = GroupState(id=GROUP, name="pair", policy="affinity", project="")
                return GroupsFound(groups=(group,) if question.name == "pair" else ())
            case AskHistory():
                return HistoryFound(instance=None, changes=())
            case AskConsole():
                return ConsoleFound(text="hello")
            case AskReasons():
                return ReasonsFound(hosts=())
        raise AssertionError(question)

    def _page(self, question: AskInstances) -> InstancesFound:
        places = [number for number, each in enumerate(self.rows) if each.id == question.after]
        start = places[0] + 1 if places else 0
        read = self.rows[start : start + READ_MAX]
        found = [each for each in read if _is_asked_for(each, question)][: question.limit]
        is_full = len(found) == question.limit
        last = (found if is_full else read)[-1:]
        is_over = not last or last[0] is self.rows[-1]
        return InstancesFound(instances=tuple(found), next=None if is_over else last[0].id)


def _is_asked_for(row: InstanceState, question: AskInstances) -> bool:
    return (
        (not question.instances or row.id in question.instances)
        and (question.request_id in (None, row.request_id))
        and (question.request_prefix == "" or row.request_id.hex.startswith(question.request_prefix))
        and (question.id_prefix == "" or row.id.hex.startswith(question.id_prefix))
        and question.name in ("", row.name)
        and question.project in ("", row.project)
        and question.state in ("", row.state)
        and not (question.living and row.state == "deleted")
    )


@pytest.mark.parametrize(
    "states",
    [
        (*["error"] * 30, "active"),
        ("active", *["error"] * 30),
        (*["error"] * 15, "stopped", *["error"] * 15, "deleting"),
        (*["deleted"] * 35, "active", *["deleted"] * 35),
        (*["deleted"] * 35, "error"),
    ],
)
async def test_a_name_of_thousands_means_the_one_that_lives(states: tuple[str, ...]) -> None:
    rows = Rows(*states)
    (lives,) = [each for each in rows.rows if each.state in ("active", "stopped")] or rows.rows[-1:]

    assert await client_of(rows).show("web") == lives


async def test_of_several_that_live_these_are_named_before_those_that_failed() -> None:
    rows = Rows(*["error"] * 30, "active", "stopped")

    with pytest.raises(Ambiguous) as told:
        await client_of(rows).show("web")

    assert [each.rpartition(" ")[2] for each in told.value.candidates] == [
        "active",
        "stopped",
        *["error"] * 6,
    ]


async def test_several_that_failed_are_ambiguous_and_so_is_the_beginning_of_ids() -> None:
    for rows, named in ((Rows("error", "error"), "web"), (Rows("error", "active", name="db"), "0000-0000")):
        with pytest.raises((Ambiguous, NotFound)):
            await client_of(rows).show(named)
    with pytest.raises(Ambiguous):
        await client_of(Rows("error", "active", name="db")).show("00000000")


async def test_histories_consoles_and_verdicts_take_names() -> None:
    rows = Rows("error", "active")
    moor, active = client_of(rows), rows.rows[1].id

    await moor.history("web")
    await moor.console("web")
    await moor.verdicts(Flavor(vcpus=1), group="pair", different_host=["web"])

    asked = {type(each): each for each in rows.asked}
    history, console, reasons = asked[AskHistory], asked[AskConsole], asked[AskReasons]
    assert isinstance(history, AskHistory)
    assert isinstance(console, AskConsole)
    assert isinstance(reasons, AskReasons)
    assert (history.instance, console.instance) == (active, active)
    assert reasons.request.group is not None
    assert (reasons.request.group.id, reasons.request.different_host) == (GROUP, (active,))
    with pytest.raises(NotFound, match="no instance 'nobody'"):
        await moor.history("nobody")


async def test_a_name_means_an_instance_of_the_project_that_asks() -> None:
    rows = Rows("active", "active")
    rows.rows = [
        structs.replace(row, project=project)
        for row, project in zip(rows.rows, ("bank", "shop"), strict=True)
    ]

    await client_of(rows).of_project("shop").history("web")

    assert [each.instance for each in rows.asked if isinstance(each, AskHistory)] == [rows.rows[1].id]


HOST, OLD = ProviderId(UUID(int=1)), ProviderId(UUID(int=2))


def a_provider(number: int, total: int) -> ProviderState:
    inventories = {"VCPU": InventoryState(total=total)}
    return ProviderState(
        internal=number,
        id=ProviderId(UUID(int=number)),
        name=f"h1_NUMA{number}",
        root=HOST,
        parent=HOST,
        inventories=inventories,
    )


def test_two_amounts_of_a_share_from_an_earlier_shape_get_no_room_twice() -> None:
    large, small = a_provider(3, 6), a_provider(4, 4)
    places = Places({each.id: each for each in (large, small)})
    share = Share(host=HOST, amounts=(ResourceAmount(OLD, "VCPU", 4), ResourceAmount(OLD, "VCPU", 5)))

    found = in_present_shape(share, places).amounts

    given = [(each.provider, each.amount) for each in found]
    assert given == [(large.id, 4), (small.id, 4), (large.id, 1)]


QUESTION = AskConsole(instance=CONSUMER, start=-4, limit=4)


class Answers:
    """Answers questions about a console one by one, and afterwards says that there is no such instance."""

    def __init__(self, *found: ConsoleFound) -> None:
        self._found = [*found]
        self.starts: list[int] = []

    async def ask(self, question: Message) -> Message:
        if not isinstance(question, AskConsole):
            return InstancesFound(instances=())
        self.starts.append(question.start)
        return self._found.pop(0) if self._found else ConsoleFound(none="no host has it")


async def texts(found: Sequence[ConsoleFound], *, follow: bool) -> tuple[list[str], list[int]]:
    answers = Answers(*found)
    parts = (parts_of_console if follow else last_of_console)(answers, QUESTION)
    return [each.text or each.none async for each in parts], answers.starts


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "LOOK_S", 0.0)


def part(text: str, start: int, size: int, attempt: int = 1) -> ConsoleFound:
    return ConsoleFound(text=text, start=start, next=start + len(text), size=size, attempt=attempt)


async def test_each_part_begins_where_the_last_one_ended_until_the_instance_is_gone() -> None:
    found = (part("abcd", 6, 10), part("", 10, 10), part("ef", 10, 12))

    assert await texts(found, follow=True) == (["abcd", "", "ef", "no host has it"], [-4, 10, 10, 12])


async def test_the_console_on_another_host_is_read_from_its_beginning() -> None:
    found = (part("abcd", 6, 10), part("zz", 10, 90, attempt=2), part("new", 0, 3, attempt=2))

    assert await texts(found, follow=True) == (["abcd", "new", "no host has it"], [-4, 10, 0, 3])


async def test_a_part_that_did_not_fit_into_a_message_is_followed_by_the_rest_and_no_more() -> None:
    found = (part("ab", 6, 10), part("cd", 8, 30), part("later", 10, 30))

    assert await texts(found, follow=False) == (["ab", "cd"], [-4, 8])
    assert await texts((), follow=False) == (["no host has it"], [-4])
