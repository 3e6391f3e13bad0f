"""TLS to PostgreSQL, as the URL's query says it by libpq's names: sslmode, sslrootcert, sslcert, sslkey. And the file of the
password (`passwordfile`), which is read at each login.

Without `sslmode`, a URL that names an authority (`sslrootcert`) means `verify-full`: the server must show a certificate of that
authority for the host's name. A URL that says nothing is left to asyncpg, which then takes TLS if the server offers it.
"""

import ssl
from functools import partial
from typing import Any

from sqlalchemy.engine import URL

from bus.configuration.sections import BadSetting
from bus.secret_files import PASSWORD_FILE, read_secret
from bus.tls import BadCertificate, client_tls

MODES = ("disable", "require", "verify-ca", "verify-full")
_FILES = {"ca_file": "sslrootcert", "cert_file": "sslcert", "key_file": "sslkey"}


def with_tls(url: URL) -> tuple[URL, dict[str, Any]]:
    """The URL without these parts of its query, and the arguments for asyncpg that say the same."""
    said = {name: value for name in ("sslmode", *_FILES.values()) if (value := _one(url, name))}
    if not said:
        return url, {}
    files = {argument: said.get(name, "") for argument, name in _FILES.items()}
    mode = said.get("sslmode", "verify-full" if files["ca_file"] else "")
    if mode not in MODES:
        raise _bad(url, f"sslmode is {mode!r}, must be {', '.join(MODES[:-1])} or {MODES[-1]}")
    rest = url.difference_update_query((*_FILES.values(), "sslmode"))
    return rest, {"ssl": _context(url, mode, files) if mode != "disable" else False}


def certificate_of(url: URL) -> str:
    """The file of the certificate that the client shows; empty if it has none."""
    return _one(url, "sslcert")


def with_password_file(url: URL) -> tuple[URL, dict[str, Any]]:
    """The URL without `passwordfile`, and the argument for asyncpg that says the same."""
    file = _one(url, PASSWORD_FILE)
    if not file:
        return url, {}
    return url.difference_update_query((PASSWORD_FILE,)), {"password": partial(read_secret, file)}


def _context(url: URL, mode: str, files: dict[str, str]) -> ssl.SSLContext:
    try:
        return client_tls(
            **files,
            checks_name=mode == "verify-full",
            verifies=mode != "require" or bool(files["ca_file"]),
        )
    except BadCertificate as wrong:
        raise _bad(url, f"{_FILES[wrong.argument]} is {wrong.file}: {wrong.why}") from None


def _one(url: URL, name: str) -> str:
    value = url.query.get(name, "")
    return value if isinstance(value, str) else value[-1]


def _bad(url: URL, why: str) -> BadSetting:
    return BadSetting("db_url", url.render_as_string(hide_password=True), "the database's URL", why)
