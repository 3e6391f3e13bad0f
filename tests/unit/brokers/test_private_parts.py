"""The undocumented parts of libraries that this project uses are as it expects. pyproject.toml bounds these libraries above.

A failure here means that a new version changed such a part: adapt the file named, then raise the bound.
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
from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
BOUNDED = ("aio-pika", "aiormq", "pamqp", "uvicorn")


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


def test_uvicorn_has_the_methods_that_bus_operating_http_server_replaces() -> None:
    assert "with self.capture_signals():" in inspect.getsource(Server.serve)
    assert "self.send_400_response(msg)" in inspect.getsource(HttpToolsProtocol.data_received)
