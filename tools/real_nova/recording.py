"""What Nova's services say to and about schedulers, as it is on its RabbitMQ: `python -m tools.real_nova.recording FILE [--only WORD]`.

It does the operations with Nova's own scheduler and Placement, while the broker copies each message that is published. A line of the
file has one message: `select_destinations` and its answer, casts to all schedulers, and notifications of what schedulers must know.
Secrets are taken out. Of messages that are alike, but for ids and names, one is kept. With `--only`, the file's lines of other operations stay.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aio_pika

from nova_bridge.envelope import redacted
from tests.conformance.nova.cloud import CELLS, OPTIONS, Operation
from tests.conformance.nova.nova_conf import API_LEVEL, virtual_host
from tests.conformance.nova.operations import OPERATIONS, done, prepared
from tests.conformance.nova.stack import NovaStack, Wanted, nova_stack

TRACE = "amq.rabbitmq.trace"
QUEUE = "recorded"
NOTIFIED = ("service.", "aggregate.", "server_group.", "compute.")
_ID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
# Without these a message says the same.
_CHANGING = re.compile(
    r"(_at|_s|^id|host|node|name|address|report_count|seen|time|index|reservation|publisher)", re.IGNORECASE
)


async def begin(stack: NovaStack) -> None:
    """On all virtual hosts: a compute sends its casts to schedulers by the one of its cell."""
    for level in _levels(stack):
        stack.rabbitmq.ctl("trace_on", "-p", virtual_host(level))
        async with await aio_pika.connect(_url(stack, level)) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(QUEUE, durable=True)
            await queue.bind(TRACE, "publish.#")


async def said_since(stack: NovaStack) -> list[dict[str, Any]]:
    """The messages since the last look, as the broker has copied them."""
    found = []
    for level in _levels(stack):
        async with await aio_pika.connect(_url(stack, level)) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(QUEUE, passive=True)
            while message := await queue.get(no_ack=True, fail=False):
                headers: Any = message.headers
                found.append(
                    {
                        "exchange": headers["exchange_name"],
                        "routing_keys": list(headers["routing_keys"]),
                        "properties": headers["properties"],
                        "body": message.body,
                    }
                )
    return found


def _levels(stack: NovaStack) -> tuple[str, ...]:
    return (API_LEVEL, *stack.wanted.cells)


def _url(stack: NovaStack, level: str) -> str:
    return f"amqp://guest:guest@{stack.places.amqp}/{virtual_host(level)}"


def of_schedulers(messages: Iterable[Mapping[str, Any]], operation: str) -> Iterator[dict[str, Any]]:
    """Those that schedulers send, get or must know of, with the kind of each, in their order."""
    asked: dict[str, str] = {}
    for each in messages:
        said = _message_in(each["body"])
        key = each["routing_keys"][0] if each["routing_keys"] else ""
        kind = ""
        if said.get("method") == "select_destinations":
            kind = "request"
            asked[said["_msg_id"]] = kind
        elif said.get("_msg_id") in asked and key.startswith("reply_"):
            kind = "answer"
        elif each["exchange"] == "scheduler_fanout" or key == "scheduler":
            kind = "cast"
        elif key.startswith("versioned_notifications") and str(said.get("event_type")).startswith(NOTIFIED):
            kind = "notification"
        if kind:
            plain = redacted(each["body"]).decode()
            yield {"operation": operation, "kind": kind, **each, "body": plain}


def _message_in(body: bytes) -> Mapping[str, Any]:
    try:
        outer = json.loads(body)
        inner: Mapping[str, Any] = json.loads(outer["oslo.message"])
    except (ValueError, KeyError, TypeError):
        return {}
    return inner


def unlike(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Of messages that are alike the first. A request stays with its answer."""
    known: set[str] = set()
    kept: set[str] = set()
    for each in messages:
        said = _message_in(each["body"].encode())
        if each["kind"] == "answer":
            if said.get("_msg_id") in kept:
                yield each
            continue
        shape = f"{each['kind']} {json.dumps(_states_told(said) or _shape(said))}"
        if shape not in known:
            known.add(shape)
            kept.add(said.get("_msg_id", ""))
            yield each


def _states_told(said: Mapping[str, Any]) -> Any:
    """Of casts about instances, which are the most, schedulers read the states of the instances alone."""
    if said.get("method") != "update_instance_info":
        return None
    told = said["args"]["instance_info"]["nova_object.data"]
    instances = [each["nova_object.data"] for each in told.get("objects", ())] or [told]
    return [
        "objects" in told,
        *sorted({f"{each.get('vm_state')} {each.get('task_state')}" for each in instances}),
    ]


def _shape(value: Any, name: str = "") -> Any:
    match value:
        case dict():
            return {
                key: _shape(each, key)
                for key, each in value.items()
                if not key.startswith("_") or key == "_nova_check_type"
            }
        case list():
            return sorted({json.dumps(_shape(each, name)) for each in value})
        case None | bool():
            return value
        case str() if _CHANGING.search(name) or _ID.search(value):
            return "text"
        case int() | float():
            return "number"
    return value


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.real_nova.recording")
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="only operations whose name has this word; may be repeated",
    )
    options = parser.parse_args(arguments)
    operations = [
        each for each in OPERATIONS if not options.only or any(word in each.what for word in options.only)
    ]
    found = kept_of_others(options.file, operations) if options.only else []
    with nova_stack(Wanted(placement="theirs", scheduler="theirs", cells=CELLS, options=OPTIONS)) as stack:
        asyncio.run(begin(stack))
        cloud = prepared(stack)
        started = [*of_schedulers(asyncio.run(said_since(stack)), "start")]
        found += [] if options.only else started
        for operation in operations:
            outcome = done(cloud, operation)
            print(f"{'as expected' if outcome.is_right else 'WRONG':<12} {operation.what}", flush=True)
            if not outcome.is_right:
                print(f"             seen {outcome.seen}", flush=True)
            found += of_schedulers(asyncio.run(said_since(stack)), operation.what)
    lines = [json.dumps(each) for each in unlike(found)]
    options.file.write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} of {len(found)} messages, {options.file.stat().st_size} bytes")
    return 0


def kept_of_others(file: Path, operations: Sequence[Operation]) -> list[dict[str, Any]]:
    """What was recorded before, but not in these operations."""
    again = {each.what for each in operations}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [each for each in lines if each["operation"] not in again]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
