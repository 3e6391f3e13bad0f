"""TLS settings whose files change, between a client and a server of this process."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from kit.tls import BadCertificate, TlsClient, client_tls, server_tls


class Files:
    """An authority's certificate, and one with its key of each end."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.ca, self.server, self.client = (
            str(directory / name) for name in ("ca.pem", "server.pem", "client.pem")
        )
        self.trust(self.authority)
        self.issue(self.server, "localhost")
        self.issue(self.client, "moor@localhost")

    def trust(self, *authorities: trustme.CA) -> None:
        Path(self.ca).write_bytes(b"".join(each.cert_pem.bytes() for each in authorities))

    def issue(
        self, file: str, name: str, by: trustme.CA | None = None, not_after: datetime | None = None
    ) -> None:
        issued = (by or self.authority).issue_cert(name, common_name=name, not_after=not_after)
        issued.private_key_and_cert_chain_pem.write_to_path(file)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A server that says the serial number of the client's certificate, and echoes nothing."""

    async def serve(_: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        shown = out.get_extra_info("peercert") or {}
        out.write(f"{shown.get('serialNumber', 'nobody')}\n".encode())
        await out.drain()
        out.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def visit(port: int, context: ssl.SSLContext, name: str = "localhost") -> tuple[str, str]:
    """The serial numbers of the server's certificate and of the client's, as the other end sees them."""
    read, out = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    try:
        certificate = out.get_extra_info("peercert")
        return certificate["serialNumber"] if certificate else "", (await read.readline()).decode().strip()
    finally:
        out.close()


async def test_a_client_uses_renewed_certificates_at_its_next_connection_and_a_server_when_it_is_told(
    files: Files,
) -> None:
    server, client = server_tls(files.server, "", files.ca), client_tls(files.ca, files.client)
    async with serving(server) as port:
        first = await visit(port, client)
        again = await visit(port, client)
        files.issue(files.server, "localhost")
        files.issue(files.client, "moor@localhost")
        of_client = await visit(port, client)
        server.read_again()
        of_both = await visit(port, client)

    assert first == again
    assert "nobody" not in first[1]
    assert of_client[0] == first[0]
    assert of_client[1] != first[1]
    assert of_both[0] != first[0]
    assert of_both[1] == of_client[1]


@pytest.mark.hits("a client is refused: %s")
async def test_a_server_that_wants_certificates_refuses_each_wrong_one_with_its_reason(files: Files) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    async with serving(server_tls(files.server, "", files.ca)) as port:
        why = [await refusal(port, client_tls(files.ca))]
        files.issue(files.client, "moor@localhost", trustme.CA())
        why.append(await refusal(port, client_tls(files.ca, files.client)))
        files.issue(files.client, "moor@localhost", not_after=past)
        why.append(await refusal(port, client_tls(files.ca, files.client)))

    assert why == [
        f"it refuses the certificate own.pem: {each}; certfile names the certificate"
        for each in (
            "it wants a client certificate, and none was shown",
            "it is of an authority that the server does not trust",
            "it has expired",
        )
    ]


async def refusal(port: int, client: ssl.SSLContext) -> str:
    with pytest.raises(ssl.SSLError) as refused:
        await visit(port, client)
    return TlsClient("own.pem", "certfile", "cafile").explained(refused.value)


async def test_a_certificate_of_another_authority_is_told_with_the_setting_that_names_the_authority(
    files: Files,
) -> None:
    client = client_tls(files.ca)
    files.trust(trustme.CA())
    async with serving(server_tls(files.server)) as port:
        assert await refusal(port, client) == (
            "its certificate is not trusted: unable to get local issuer certificate; cafile names the authority"
        )


async def test_a_client_refuses_another_name_and_an_expired_certificate(files: Files) -> None:
    server, client = server_tls(files.server), client_tls(files.ca)
    async with serving(server) as port:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await visit(port, client, "elsewhere")
        assert await visit(port, client_tls(files.ca, checks_name=False), "elsewhere")
        files.issue(files.server, "localhost", not_after=datetime.now(UTC) - timedelta(days=1))
        server.read_again()
        with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
            await visit(port, client)


async def test_files_that_cannot_be_used_at_the_start_are_named(files: Files) -> None:
    attempts: tuple[tuple[Callable[[], ssl.SSLContext], str], ...] = (
        (lambda: client_tls("/absent"), "ca_file"),
        (lambda: client_tls(files.ca, "/absent"), "cert_file"),
        (lambda: client_tls(files.ca, files.ca), "cert_file"),
        (lambda: client_tls(key_file="/absent"), "key_file"),
        (lambda: server_tls("/absent"), "cert_file"),
        (lambda: server_tls(files.server, "", "/absent"), "clients_ca_file"),
    )
    for make, argument in attempts:
        with pytest.raises(BadCertificate) as refused:
            make()
        assert refused.value.argument == argument
