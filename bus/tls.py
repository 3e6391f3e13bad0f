"""TLS settings of clients: the authorities whose servers they trust, and the certificate that they show to servers."""

import ssl


class BadCertificate(ValueError):  # noqa: N818 - named for what it is
    """A file with certificates or a key cannot be used. `file` says which of the arguments of `client_tls` named it."""

    def __init__(self, argument: str, file: str, why: str) -> None:
        super().__init__(f"{argument} is {file}: {why}")
        self.argument, self.file, self.why = argument, file, why


def client_tls(ca_file: str = "", cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """The TLS settings of a client. Servers are verified by the certificates in `ca_file`, or by the system's. The client shows
    the certificate in `cert_file`, whose key is in `key_file`, or in the same file. All files are PEM.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as problem:
        raise BadCertificate("ca_file", ca_file, str(problem)) from None
    if key_file and not cert_file:
        raise BadCertificate("key_file", key_file, "a key without a certificate: cert_file is not set")
    if cert_file:
        try:
            # Without a function for the password, the TLS library asks at the terminal.
            context.load_cert_chain(cert_file, key_file or None, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as problem:
            raise BadCertificate("cert_file", cert_file, str(problem) or repr(problem)) from None
    return context


def _no_password() -> str:
    raise ValueError("its key is encrypted, and there is no setting for its password: decrypt the key")
