"""A private RabbitMQ and a private PostgreSQL that speak TLS, as a deployment has them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy.engine import make_url

from tests.contracts import sql_stores
from tests.servers.certificates import Certificates, certificates
from tests.servers.free_places import free_port
from tests.servers.guarded_postgres import guarded_postgres
from tests.servers.postgres import PrivatePostgres
from tests.servers.rabbitmq import PrivateRabbitMQ


class Servers:
    def __init__(
        self, postgres: PrivatePostgres, rabbitmq: PrivateRabbitMQ, made: Certificates, tls: int, api: int
    ) -> None:
        self.postgres, self.rabbitmq, self.certificates = postgres, rabbitmq, made
        self.bus = f"amqps://guest:guest@127.0.0.1:{tls}/?cafile={quote(str(made.ca))}"
        if made.asks_clients:
            self.bus += f"&certfile={quote(made.client('guest'))}"
        database = make_url(postgres.url).set(database="moorage").render_as_string()
        self.db = f"{database}?sslrootcert={quote(str(made.ca))}"
        self.api = f"http://127.0.0.1:{api}"


@contextmanager
def running_servers(*, asks_clients: bool = False) -> Iterator[Servers]:
    """With `asks_clients`, both want certificates of their clients, and the administrator of the broker has one."""
    tls, api = free_port(), free_port()
    with certificates(asks_clients=asks_clients) as made:
        rabbitmq = PrivateRabbitMQ(
            more_settings=(
                *made.of_rabbitmq(tls),
                f"management.tcp.port = {api}",
                "management.tcp.ip = 127.0.0.1",
            ),
            plugins=("rabbitmq_management", *(("rabbitmq_auth_mechanism_ssl",) if asks_clients else ())),
        )
        rabbitmq.launch()
        try:
            with guarded_postgres(made.of_postgres, only_tls=True, asks_clients=asks_clients) as postgres:
                rabbitmq.wait_until_ready()
                yield Servers(postgres, rabbitmq, made, tls, api)
        finally:
            rabbitmq.stop()


async def administer(servers: Servers, *statements: str) -> None:
    """As PostgreSQL's own administrator."""
    await sql_stores.administer(*statements, url=servers.postgres.url)


async def rows_of(servers: Servers, query: str) -> list[tuple[Any, ...]]:
    """As PostgreSQL's own administrator sees them."""
    return await sql_stores.rows_of(servers.postgres.url, query)


def environment(etc: Path, name: str) -> dict[str, str]:
    """The variables in this environment file."""
    lines = (etc / f"{name}.env").read_text().splitlines()
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}
