"""TLS settings of clients and servers: the authorities that they trust, and the certificate that they show.

A client reads its files at each new connection, and a server when the process gets a SIGHUP. Connections that are open go on. Files that
cannot be used then change nothing, and the log says so.
"""

import logging
import re
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

from msgspec import Struct

log = logging.getLogger(__name__)

# The TLS library's error for the server's certificate, which clients of AMQP and HTTP pass on as text.
_UNTRUSTED = re.compile(r"certificate verify failed: (?P<why>.*?)\.? \(_ssl")
# What a server sends before it hangs up, as the TLS library writes it, and what it means.
_ALERTS = {
    "CERTIFICATE_REQUIRED": "it wants a client certificate, and none was shown",
    "HANDSHAKE_FAILURE": "it wants a client certificate that it accepts",
    "UNKNOWN_CA": "it is of an authority that the server does not trust",
    "CERTIFICATE_EXPIRED": "it has expired",
    "CERTIFICATE_REVOKED": "it was revoked",
    "BAD_CERTIFICATE": "it is not valid for this server",
    "CERTIFICATE_UNKNOWN": "the server does not accept it",
    "UNSUPPORTED_CERTIFICATE": "it is not for clients",
}
_ALERT = re.compile(rf"(?:ALERT_)?({'|'.join(_ALERTS)})\b", re.IGNORECASE)


class TlsClient(Struct, frozen=True):
    """Explains a client's errors. `certificate` is the file of its own, empty if it has none; `certificate_in` and `authority_in` are
    the settings that name this file and that of the authorities.
    """

    certificate: str
    certificate_in: str
    authority_in: str
    # Whether it is known to speak TLS with this server: only then may the end of a connection be about a certificate.
    speaks_tls: bool = True

    def explained(self, problem: BaseException, *, hung_up: bool = False) -> str:
        """Which end refuses which certificate, and why; empty if the problem is another one. `hung_up`: the server has ended the
        connection without a word.

        A server that refuses a client's certificate says why, and hangs up; under TLS 1.3 the client has then sent its first words
        already, and often learns no more than that the connection was reset.
        """
        said, own = str(problem), self.certificate
        if untrusted := _UNTRUSTED.search(said):
            why = f"its certificate is not trusted: {untrusted['why']}"
            return f"{why}; {self.authority_in} names the authority"
        if "alert" in said.lower() and (refused := _ALERT.search(said.replace(" ", "_"))):
            shown = f"the certificate {own}" if own else "a client without a certificate"
            why = _ALERTS[refused[1].upper()]
            return f"it refuses {shown}: {why}; {self.certificate_in} names the certificate"
        if not (hung_up and self.speaks_tls):
            return ""
        if own:
            why = f"it may not trust the authority of the certificate {own}, or it has expired"
        else:
            why = f"it may want a client certificate, and {self.certificate_in} names none"
        return f"it hung up in the TLS handshake: {why} ({problem!r})"


class BadCertificate(ValueError):  # noqa: N818 - named for what it is
    """A file with certificates or a key cannot be used. `argument` says which of the arguments named it."""

    def __init__(self, argument: str, file: str, why: str) -> None:
        super().__init__(f"{argument} is {file}: {why}")
        self.argument, self.file, self.why = argument, file, why


class ClientTls(ssl.SSLContext):
    """A context for many connections. Each connection gets a context that is made of the files as they are then."""

    _read: Callable[[], ssl.SSLContext]
    _last: ssl.SSLContext
    _protocols: Sequence[str] = ()

    @classmethod
    def of(cls, read: Callable[[], ssl.SSLContext]) -> Self:
        """`read` makes a context of the files. Raises BadCertificate if they cannot be used at the start."""
        first = read()
        made = cls(first.protocol)
        made._read, made._last = read, first
        # Libraries ask the context for these.
        made.check_hostname = False
        made.verify_mode = first.verify_mode
        made.check_hostname = first.check_hostname
        return made

    def set_alpn_protocols(self, alpn_protocols: Any) -> None:
        self._protocols = tuple(alpn_protocols)

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self._of_a_connection().wrap_bio(*arguments, **named)

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        return self._of_a_connection().wrap_socket(*arguments, **named)

    def read_again(self) -> None:
        """Files that cannot be used now, such as a certificate without its new key, change nothing."""
        try:
            self._last = self._read()
        except BadCertificate as wrong:
            log.warning("changed certificates are not used, and the former ones are kept: %s", wrong)
        if self._protocols:
            self._last.set_alpn_protocols([*self._protocols])

    def _of_a_connection(self) -> ssl.SSLContext:
        self.read_again()
        return self._last


class ServerTls(ClientTls):
    """The context of a server. All connections get the one that was made of the files when they were read last."""

    def _of_a_connection(self) -> ssl.SSLContext:
        return self._last


def client_tls(
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
    *,
    checks_name: bool = True,
    verifies: bool = True,
) -> ssl.SSLContext:
    """The TLS settings of a client, which reads the files at each new connection. Servers are verified by the certificates in `ca_file`, or by the system's. The client shows
    the certificate in `cert_file`, whose key is in `key_file`, or in the same file. All files are PEM.
    """
    if key_file and not cert_file:
        raise BadCertificate("key_file", key_file, "a key without a certificate: cert_file is not set")

    def read() -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=ca_file or None)
        except (OSError, ssl.SSLError) as problem:
            raise BadCertificate("ca_file", ca_file, str(problem)) from None
        context.check_hostname = checks_name and verifies
        if not verifies:
            context.verify_mode = ssl.CERT_NONE
        if cert_file:
            _show(context, cert_file, key_file)
        return context

    # The system's authorities are a long file, which does not change while a process runs.
    return ClientTls.of(read) if ca_file or cert_file else read()


def server_tls(cert_file: str, key_file: str = "", clients_ca_file: str = "") -> ServerTls:
    """The TLS settings of a server, for TLS 1.2 and later. With `clients_ca_file`, each client must show a certificate of an
    authority in that file.
    """

    def read() -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sslobject_class = _ServerEnd
        _show(context, cert_file, key_file)
        if clients_ca_file:
            try:
                context.load_verify_locations(clients_ca_file)
            except (OSError, ssl.SSLError) as problem:
                raise BadCertificate("clients_ca_file", clients_ca_file, str(problem)) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    return ServerTls.of(read)


class _ServerEnd(ssl.SSLObject):
    """The server's end of a connection. It tells a client with a wrong certificate why it is refused.

    The event loop hangs up as soon as a handshake has failed, before the alert is sent that says why. So the failure is first
    answered as if more had to be read: the loop sends the alert then. It ends the connection when the client does, or after
    its limit for handshakes.
    """

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLCertVerificationError as refused:
            self._refuse(refused, f"its certificate is not trusted: {refused.verify_message}")
        except ssl.SSLError as failed:
            if failed.reason != "PEER_DID_NOT_RETURN_A_CERTIFICATE":
                raise
            self._refuse(failed, "it shows no certificate")

    def _refuse(self, failure: ssl.SSLError, why: str) -> NoReturn:
        log.info("a client is refused: %s", why)
        self._failure = failure
        raise ssl.SSLWantReadError from failure


def _show(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    try:
        # Without a function for the password, the TLS library asks at the terminal.
        context.load_cert_chain(cert_file, key_file or None, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as problem:
        raise BadCertificate("cert_file", cert_file, str(problem) or repr(problem)) from None


def _no_password() -> str:
    raise ValueError("its key is encrypted, and there is no setting for its password: decrypt the key")
