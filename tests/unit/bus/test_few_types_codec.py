"""The codec of commands reads every line as the codec of workers does."""

import json

import pytest

from bus.codec import CODEC, FewTypesCodec, encode
from bus.message import Message
from tests.unit.examples import EXAMPLES
from tools.pages.golden import enveloped

CODEC_OF_COMMANDS = FewTypesCodec()
VALID = encode(enveloped(EXAMPLES[0]))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: type(each).__name__)
def test_every_message_is_read_the_same(example: Message) -> None:
    line = encode(enveloped(example))
    assert CODEC_OF_COMMANDS.decode(line) == CODEC.decode(line) == enveloped(example)

    told = json.loads(line)
    for change in (
        {"unknown": 1},
        {next(iter(told["message"])): None},
        {"type": told["message"]["type"], "name": "\0"},
    ):
        broken = json.dumps({**told, "message": {**told["message"], **change}}).encode()
        assert CODEC_OF_COMMANDS.decode(broken) == CODEC.decode(broken)
    newer = json.dumps({**told, "version": 99}).encode()
    assert CODEC_OF_COMMANDS.decode(newer) == CODEC.decode(newer)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"message": 3}',
        b'{"message": {}}',
        b'{"message": {"type": 3}}',
        b'{"message": {"type": "no.such"}}',
        b'{"message": {"type": "names.found", "names": []}, "attempts": -1}',
        b"\xff\xfe",
        VALID[:-3],
        VALID + b" x",
    ],
)
def test_what_is_no_message_is_told_the_same(line: bytes) -> None:
    assert CODEC_OF_COMMANDS.decode(line) == CODEC.decode(line)
