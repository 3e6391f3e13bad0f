"""A virtual host and a database for one test, on the real servers."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

from tests.contracts.rabbitmq_under_test import URL_VARIABLE, RabbitMQUnderTest
from tests.contracts.sql_stores import empty_database
from tests.running import closing


@asynccontextmanager
async def real_servers() -> AsyncIterator[tuple[str, str]]:
    """The URLs of both. The broker's URL bypasses the proxy that tests cut connections with."""
    async with closing(await RabbitMQUnderTest.start()) as (under_test,):
        server = urlsplit(os.environ[URL_VARIABLE])
        bus_url = server._replace(path="/" + quote(under_test.virtual_host, safe="")).geturl()
        async with empty_database("postgresql") as database_url:
            yield bus_url, database_url
