"""Certificates for private servers, of an authority that is made for one test."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import trustme

from tests.servers.postgres import unprivileged


class Certificates:
    """The files of an authority, and of a certificate for loopback, which its owner alone may read. And clients' certificates.

    With `asks_clients`, the servers refuse clients without a certificate of the authority. RabbitMQ then takes the name in it
    for the user, and PostgreSQL wants the role's name there.
    """

    def __init__(self, directory: Path, *, asks_clients: bool = False) -> None:
        self._directory, self.asks_clients = directory, asks_clients
        authority, another = trustme.CA(), trustme.CA()
        self.authority, self.another = authority, another
        self.ca, self.another_ca = directory / "ca.pem", directory / "another-ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        another.cert_pem.write_to_path(str(self.another_ca))
        # PostgreSQL takes only a key that belongs to its own user or to root, and RabbitMQ runs as the tests do.
        self._of_postgres, self._of_rabbitmq = directory / "postgres.pem", directory / "rabbitmq.pem"
        self.issue_servers()
        self.of_postgres = {
            "ssl": "on",
            "ssl_cert_file": str(self._of_postgres),
            "ssl_key_file": str(self._of_postgres),
            **({"ssl_ca_file": str(self.ca)} if asks_clients else {}),
        }

    def issue_servers(
        self, *names: str, by: trustme.CA | None = None, not_after: datetime | None = None
    ) -> None:
        """Write the servers' certificates anew. RabbitMQ and PostgreSQL must be told to read them again."""
        issued = (by or self.authority).issue_cert(
            *(names or ("127.0.0.1", "localhost")), not_after=not_after
        )
        for file in (self._of_postgres, self._of_rabbitmq):
            issued.private_key_and_cert_chain_pem.write_to_path(str(file))
            file.chmod(0o600)
        user, group = unprivileged()
        if user is not None and group is not None:
            os.chown(self._of_postgres, user, group)

    def client(self, name: str, *, by: trustme.CA | None = None, not_after: datetime | None = None) -> str:
        """The file of a certificate for this name, which is the common name in it. It is written anew each time."""
        issued = (by or self.authority).issue_cert(f"{name}@example", common_name=name, not_after=not_after)
        file = self._directory / f"{name}.client.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(file))
        file.chmod(0o600)
        return str(file)

    def server(self, name: str) -> str:
        """The file of a certificate for loopback, for a server of ours. It is written anew each time."""
        file = self._directory / f"{name}.server.pem"
        self.authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
            str(file)
        )
        return str(file)

    def of_rabbitmq(self, port: int) -> tuple[str, ...]:
        of_clients = (
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = true",
            "ssl_cert_login_from = common_name",
            "auth_mechanisms.1 = PLAIN",
            "auth_mechanisms.2 = EXTERNAL",
        )
        return (
            *(of_clients if self.asks_clients else ()),
            f"listeners.ssl.1 = 127.0.0.1:{port}",
            f"ssl_options.cacertfile = {self.ca}",
            f"ssl_options.certfile = {self._of_rabbitmq}",
            f"ssl_options.keyfile = {self._of_rabbitmq}",
        )


@contextmanager
def certificates(*, asks_clients: bool = False) -> Iterator[Certificates]:
    with tempfile.TemporaryDirectory(prefix="moor-tls-") as directory:
        # The servers may have another user than these tests.
        Path(directory).chmod(0o755)
        yield Certificates(Path(directory), asks_clients=asks_clients)
