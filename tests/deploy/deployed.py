"""A private RabbitMQ and a private PostgreSQL that speak TLS, as a deployment has them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import quote

import asyncpg
from sqlalchemy.engine import make_url

from tests.running import closing
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


@asynccontextmanager
async def administrator(servers: Servers) -> AsyncIterator[asyncpg.Connection]:
    """A session of PostgreSQL's own administrator."""
    url = make_url(servers.postgres.url).set(drivername="postgresql", database="postgres")
    async with closing(await asyncpg.connect(url.render_as_string())) as (connection,):
        yield connection


def environment(etc: Path, name: str) -> dict[str, str]:
    """The variables in this environment file."""
    lines = (etc / f"{name}.env").read_text().splitlines()
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}
