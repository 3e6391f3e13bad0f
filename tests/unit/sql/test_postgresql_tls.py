"""TLS to PostgreSQL as a URL says it."""

import ssl
from pathlib import Path

import pytest
import trustme
from sqlalchemy.engine import make_url

from kit.settings import BadSetting
from kit.sql.statements import with_tls

URL = "postgresql+asyncpg://moor:secret@db/moorage"


@pytest.fixture
def authority(tmp_path: Path) -> str:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


def test_a_url_that_says_nothing_is_left_alone() -> None:
    url = make_url(f"{URL}?application_name=x")

    assert with_tls(url) == (url, {})


@pytest.mark.parametrize(
    ("query", "checks_name", "verifies"),
    [
        ("sslrootcert={}", True, ssl.CERT_REQUIRED),
        ("sslmode=verify-full&sslrootcert={}", True, ssl.CERT_REQUIRED),
        ("sslmode=verify-full", True, ssl.CERT_REQUIRED),
        ("sslmode=verify-ca&sslrootcert={}", False, ssl.CERT_REQUIRED),
        ("sslmode=require&sslrootcert={}", False, ssl.CERT_REQUIRED),
        ("sslmode=require", False, ssl.CERT_NONE),
    ],
)
def test_modes_mean_what_they_mean_to_libpq(
    query: str,
    checks_name: bool,  # noqa: FBT001 - a parameter of pytest
    verifies: ssl.VerifyMode,
    authority: str,
) -> None:
    rest, arguments = with_tls(make_url(f"{URL}?{query.format(authority)}&application_name=x"))

    assert rest == make_url(f"{URL}?application_name=x")
    context = arguments["ssl"]
    assert (context.check_hostname, context.verify_mode) == (checks_name, verifies)


def test_tls_can_be_switched_off() -> None:
    assert with_tls(make_url(f"{URL}?sslmode=disable")) == (make_url(URL), {"ssl": False})


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("sslmode=prefer", "sslmode is 'prefer', must be disable, require, verify-ca or verify-full"),
        ("sslrootcert=/not/there.pem", "sslrootcert is /not/there.pem: "),
        ("sslmode=require&sslkey=/k.pem", "sslkey is /k.pem: a key without a certificate"),
        ("sslmode=require&sslcert=/c.pem", "sslcert is /c.pem: "),
    ],
)
def test_what_is_wrong_is_named_without_the_password(query: str, why: str) -> None:
    with pytest.raises(BadSetting) as wrong:
        with_tls(make_url(f"{URL}?{query}"))

    assert why in str(wrong.value)
    assert "secret" not in str(wrong.value)
