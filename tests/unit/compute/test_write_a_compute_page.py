"""docs/write-a-compute.md: its JSON are messages as they go over the wire, and it has all orders and answers."""

import json
import re
from pathlib import Path

import pytest

from bus.codec import CODEC
from bus.message import Envelope, type_of
from bus.topology import QUEUES
from laboratory.check.orders import ANSWERS

PAGE = (Path(__file__).parents[3] / "docs" / "write-a-compute.md").read_text()
MESSAGES = [
    line for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.strip().splitlines()
]
ORDERS = {
    binding.pattern.removesuffix(".{cell}")
    for queue in QUEUES
    if queue.name == "compute.{cell}.work"
    for binding in queue.bindings
}


@pytest.mark.parametrize("line", MESSAGES, ids=lambda line: json.loads(line)["type"])
def test_each_message_of_the_page_can_be_read(line: str) -> None:
    envelope = CODEC.decode(f'{{"message": {line}}}'.encode())

    assert isinstance(envelope, Envelope), envelope
    fields = set(envelope.message.__struct_fields__) | {"type"}
    assert {*json.loads(line)} <= fields


def test_it_shows_every_order_and_every_answer() -> None:
    shown = {json.loads(line)["type"] for line in MESSAGES}
    assert ORDERS | {type_of(each) for each in ANSWERS} <= shown
