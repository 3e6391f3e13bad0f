"""A private PostgreSQL that asks every role but its superuser for a password, and on demand speaks only TLS with them, or asks
them for a certificate of their name, too.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers.postgres import FAST, PrivatePostgres

RULES = "host all postgres 127.0.0.1/32 trust\n{kind} all all 127.0.0.1/32 scram-sha-256{certificate}\n"
# Asked for no password.
BY_CERTIFICATE = "hostssl all by_certificate 127.0.0.1/32 cert\n"


@contextmanager
def guarded_postgres(
    settings: Mapping[str, str] | None = None, *, only_tls: bool = False, asks_clients: bool = False
) -> Iterator[PrivatePostgres]:
    with tempfile.TemporaryDirectory() as directory:
        # The server has another user than these tests.
        Path(directory).chmod(0o755)
        rules = Path(directory) / "pg_hba.conf"
        certificate = " clientcert=verify-full" if asks_clients else ""
        by_certificate = BY_CERTIFICATE if asks_clients else ""
        rules.write_text(
            by_certificate + RULES.format(kind="hostssl" if only_tls else "host", certificate=certificate)
        )
        rules.chmod(0o644)
        with PrivatePostgres(settings={**FAST, **(settings or {}), "hba_file": str(rules)}) as server:
            yield server
