"""Dead letters: what the client's methods find, that none of them waits for ever, and what people see of a letter's bytes."""

import json

import pytest

from bus import message
from bus.broker import Origin
from bus.codec import encode
from bus.memory import MemoryBroker
from bus.message import EVENTS, Envelope, Parcel
from bus.messages.cloud import RowFailed
from bus.topology import DEAD, objects_of
from bus.workers.dead_letters import dead_letter_parcel
from moor.client import BrokerAway, Client, NotFound, dead_letters
from moor.dashboard.letters import masked
from tests.contracts.stage import send


@pytest.fixture
async def memory() -> MemoryBroker:
    memory = MemoryBroker()
    connection = await memory.as_user().connect()
    await connection.declare(objects_of(("c1",), create_foreign=False))
    await connection.close()
    return memory


async def test_letters_are_found_by_their_handles_and_a_blocked_broker_ends_the_wait(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = memory.as_user()
    letters = [
        Parcel(DEAD, "compute.c1.work", b"{}", headers={message.REASON: why})
        for why in ("host 0", "host 1", "host 2", "no host")
    ]
    await send(broker, *letters)
    moor = Client(broker)

    every = await moor.list_dead_letters()
    shown = await moor.show_dead_letter(every[1].handle)
    assert shown.reason == "host 1"
    with pytest.raises(NotFound, match="there is no dead letter 'none'"):
        await moor.show_dead_letter("none")

    monkeypatch.setattr(dead_letters, "DECIDED_S_MAX", 0.2)
    memory.block("disk alarm")
    with pytest.raises(BrokerAway, match="disk alarm"):
        await moor.replay_dead_letters(every=True)
    memory.block("")
    # Those that died of the same, and no other.
    assert await moor.replay_dead_letters(every[0].handle, like=True) == every[:3]


def letter_of_row(row: str, number: int, sender: str = "") -> Parcel:
    """What the process of this number writes of a row at which it has failed."""
    process = f"scheduler-{number}"
    return dead_letter_parcel(
        encode(Envelope(message=RowFailed(part="wake", row=row), id=f"{process}-{row}")),
        "scheduler.requests",
        Origin(sender, "", EVENTS, "row.failed"),
        reason=f"AssertionError in {process}",
        attempts=number,
        where=process,
        letter=f"{process}-1",
    )


async def test_a_row_at_which_many_processes_failed_is_one_dead_letter(memory: MemoryBroker) -> None:
    broker = memory.as_user()
    of_first = [letter_of_row("first", number) for number in range(3)]
    await send(broker, *of_first, letter_of_row("second", 0), letter_of_row("first", 9, "moor-app-shop"))
    moor = Client(broker)

    first, *others = await moor.list_dead_letters()
    assert (len(others), len({first.handle, *[each.handle for each in others]})) == (2, 3)
    assert (await moor.show_dead_letter(first.handle)).type == "row.failed"
    assert [each.handle for each in await moor.delete_dead_letters(first.handle)] == [first.handle]
    assert [each.handle for each in await moor.list_dead_letters()] == [each.handle for each in others]
    assert await moor.count_dead_letters() == 2


async def test_a_letter_behind_all_that_are_listed_is_found_by_its_queue_and_by_its_handle(
    memory: MemoryBroker,
) -> None:
    broker = memory.as_user()
    first, last = "compute.c1.work", "placement.work"
    queues = [first] * dead_letters.LETTERS_MAX + [last] * 3
    await send(
        broker,
        *(
            Parcel(DEAD, queue, b"{}", headers={message.REASON: f"letter {number}"})
            for number, queue in enumerate(queues)
        ),
    )
    moor = Client(broker)

    assert {each.queue for each in await moor.list_dead_letters()} == {first}
    found = await moor.list_dead_letters(queue=last, limit=2)
    assert [each.reason for each in found] == ["letter 1000", "letter 1001"]
    assert await moor.show_dead_letter(found[1].handle) == found[1]
    assert await moor.delete_dead_letters(found[1].handle) == found[1:]
    assert await moor.replay_dead_letters(queue=last, every=True, limit=1) == found[:1]
    assert [each.reason for each in await moor.list_dead_letters(queue=last)] == ["letter 1002"]
    assert await moor.count_dead_letters() == dead_letters.LETTERS_MAX + 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "web", "user_data": "hush \\" hush", "cut',
        b'{"name": "web", "admin_password": "hush hu',
        b'{"name": "web",\n "secret" : 77hush, "x": 1',
        b'{"url": "amqp://user:hush@host/"}',
        b'broken: amqp://user:hush@host/ "name": "web"',
        *(
            body % field.encode()
            for field in (
                *("password", "admin_password", "adminPass", "admin_pass", "os_auth_token", "auth-token"),
                *("secret", "clientSecret", "credentials", "private_key", "user_data", "userData"),
                *("config_drive", "TOKEN"),
            )
            for body in (b'{"build": [{"%s": ["hush"]}]}', b'{"%s": "hush", "cut')
        ),
    ],
)
def test_secrets_are_hidden_also_in_a_body_that_is_broken(body: bytes) -> None:
    assert "hush" not in masked(body)


def test_names_that_users_give_are_shown_also_if_they_are_called_after_a_secret() -> None:
    named = {
        "trait:CUSTOM_SECRET_ENCLAVE": "required",
        "trait:COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST": "forbidden",
        "resources:CUSTOM_TOKEN_RING": "1",
        "CUSTOM_TOKEN": 2,
        "secret_zone": "blue",
        "passengers": "7",
    }
    body = json.dumps({"flavor": {"extra_specs": named}})

    assert json.loads(masked(body.encode())) == json.loads(body)
    assert masked(body[:-2].encode()) == body[:-2]
