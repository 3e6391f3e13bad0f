"""A virtual host and a database for one test, on the real servers."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

from tests.contracts.rabbitmq_under_test import URL_VARIABLE, RabbitMQUnderTest
from tests.contracts.sql_stores import empty_database
from tests.running import closing


def url_of(under_test: RabbitMQUnderTest) -> str:
    """The URL of its virtual host. It bypasses the proxy that tests cut connections with."""
    server = urlsplit(os.environ[URL_VARIABLE])
    return server._replace(path="/" + quote(under_test.virtual_host, safe="")).geturl()


@asynccontextmanager
async def real_servers() -> AsyncIterator[tuple[str, str]]:
    """The URLs of both."""
    async with (
        closing(await RabbitMQUnderTest.start()) as (under_test,),
        empty_database("postgresql") as database_url,
    ):
        yield url_of(under_test), database_url
