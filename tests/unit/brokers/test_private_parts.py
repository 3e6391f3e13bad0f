"""The undocumented parts of libraries that this project uses are as it expects. pyproject.toml bounds these libraries above.

A failure here means that a new version changed such a part: adapt the file named, then raise the bound. Those of uvicorn are used
in placement_worker/api/http/protocol.py, and can go when uvicorn has settings for what its class limits.
"""

import asyncio
import inspect
import tomllib
from pathlib import Path

import aio_pika
import aiormq
import pytest
from aiormq.connection import SSLContextProvider
from packaging.requirements import Requirement
from pamqp import decode
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from placement_worker.api.http.protocol import PlacementProtocol

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
BOUNDED = ("aio-pika", "aiormq", "pamqp", "uvicorn")
# Methods of uvicorn's protocol that placement_worker/api/http/protocol.py extends or calls.
PROTOCOL_METHODS = (
    *("connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing"),
    *("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_message_complete"),
    *("on_response_complete", "timeout_keep_alive_handler", "send_400_response"),
)


@pytest.mark.parametrize("name", BOUNDED)
def test_a_library_with_private_parts_in_use_is_bounded_above(name: str) -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    needed = {each.name: each for each in map(Requirement, project["dependencies"])}

    assert "<" in {each.operator for each in needed[name].specifier}


async def _connection() -> aiormq.Connection:
    return aiormq.Connection("amqp://localhost/")


def test_aiormq_has_the_parts_that_bus_rabbit_wire_uses() -> None:
    connection = asyncio.run(_connection())

    assert isinstance(connection.closing, asyncio.Future)
    assert "connection_tune" in inspect.getsource(aiormq.Connection)
    assert inspect.iscoroutinefunction(aiormq.Connection.ready)


def test_the_client_opens_the_streams_of_bus_rabbit_streams_and_reads_them() -> None:
    assert "**self.kwargs" in inspect.getsource(aio_pika.Connection.connect)
    assert "transport_factory" in inspect.signature(aiormq.Connection).parameters
    source = inspect.getsource(aiormq.Connection.connect)
    assert "ssl_context_provider=" in source
    assert "self._transport_factory.create(" in source
    assert inspect.iscoroutinefunction(SSLContextProvider.get_context)
    # The methods of a reader that asyncio's streams call.
    protocol = inspect.getsource(asyncio.StreamReaderProtocol)
    for part in ("reader.set_transport(", "reader.feed_data(", "reader.feed_eof("):
        assert part in protocol


def test_pamqp_looks_up_its_decoders_in_the_table_that_bus_rabbit_decoding_changes() -> None:
    assert {"shortstr", "table", "timestamp"} <= decode.METHODS.keys()
    assert "METHODS" in inspect.getsource(decode.by_type)


@pytest.mark.parametrize("name", PROTOCOL_METHODS)
def test_uvicorn_has_the_method_that_the_protocol_extends(name: str) -> None:
    theirs, ours = getattr(HttpToolsProtocol, name), getattr(PlacementProtocol, name)

    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_every_method_of_uvicorn_that_the_protocol_extends_is_checked_here() -> None:
    extended = {name for name, value in vars(PlacementProtocol).items() if inspect.isfunction(value)} & vars(
        HttpToolsProtocol
    ).keys()

    assert extended == set(PROTOCOL_METHODS)


def test_uvicorn_has_the_attributes_that_the_protocol_reads() -> None:
    source = inspect.getsource(HttpToolsProtocol)

    for part in (
        *("client", "cycle", "headers", "loop", "pipeline", "timeout_keep_alive", "timeout_keep_alive_task"),
        *("scope", "transport", "url"),
    ):
        assert f"self.{part}" in source
    assert "self.response_complete" in inspect.getsource(RequestResponseCycle)
