"""The golden files of messages: each type's example, as it goes over the wire. A file that is there is never written again."""

from pathlib import Path

import msgspec

from bus.codec import encode
from bus.message import Envelope, Message, type_of
from tests.unit.examples import EXAMPLES, WHEN

FOLDER = Path(__file__).parents[2] / "tests" / "golden"


def file_of(message: Message | type[Message]) -> Path:
    return FOLDER / f"{type_of(message)}.v{message.VERSION}.json"


def enveloped(message: Message) -> Envelope[Message]:
    return Envelope(
        message=message,
        id="scheduler-1-17",
        version=message.VERSION,
        sent_at=WHEN,
        cause="client-1-3",
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )


def write_missing() -> None:
    for example in EXAMPLES:
        if not file_of(example).exists():
            file_of(example).write_bytes(msgspec.json.format(encode(enveloped(example)), indent=2) + b"\n")
