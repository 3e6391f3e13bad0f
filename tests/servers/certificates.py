"""Certificates for private servers, of an authority that is made for one test."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from tests.servers.postgres import unprivileged


class Certificates:
    """The files of an authority, and of a certificate for loopback, which its owner alone may read."""

    def __init__(self, directory: Path) -> None:
        authority, another = trustme.CA(), trustme.CA()
        self.ca, self.another_ca = directory / "ca.pem", directory / "another-ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        another.cert_pem.write_to_path(str(self.another_ca))
        issued = authority.issue_cert("127.0.0.1", "localhost")
        # PostgreSQL takes only a key that belongs to its own user or to root, and RabbitMQ runs as the tests do.
        for_postgres, for_rabbitmq = directory / "postgres.pem", directory / "rabbitmq.pem"
        for file in (for_postgres, for_rabbitmq):
            issued.private_key_and_cert_chain_pem.write_to_path(str(file))
            file.chmod(0o600)
        user, group = unprivileged()
        if user is not None and group is not None:
            os.chown(for_postgres, user, group)
        self.of_postgres = {
            "ssl": "on",
            "ssl_cert_file": str(for_postgres),
            "ssl_key_file": str(for_postgres),
        }
        self._of_rabbitmq = for_rabbitmq

    def of_rabbitmq(self, port: int) -> tuple[str, ...]:
        return (
            f"listeners.ssl.1 = 127.0.0.1:{port}",
            f"ssl_options.cacertfile = {self.ca}",
            f"ssl_options.certfile = {self._of_rabbitmq}",
            f"ssl_options.keyfile = {self._of_rabbitmq}",
        )


@contextmanager
def certificates() -> Iterator[Certificates]:
    with tempfile.TemporaryDirectory(prefix="moor-tls-") as directory:
        # The servers may have another user than these tests.
        Path(directory).chmod(0o755)
        yield Certificates(Path(directory))
