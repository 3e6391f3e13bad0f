"""Until when a certificate is valid."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from kit.tls import valid_until, why_hung_up


@pytest.mark.parametrize(
    "end",
    [
        datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC),
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),
        # From this year on it is written in another form.
        datetime(2050, 1, 1, tzinfo=UTC),
    ],
)
@pytest.mark.parametrize("key_first", [True, False])
def test_the_end_of_the_first_certificate_of_a_file_is_found(
    tmp_path: Path,
    end: datetime,
    key_first: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    issued = trustme.CA().issue_cert("moor.example", common_name="moor", not_after=end)
    parts = [each.bytes() for each in issued.cert_chain_pems]
    parts.insert(0 if key_first else len(parts), issued.private_key_pem.bytes())
    file = tmp_path / "shown.pem"
    file.write_bytes(b"".join(parts))

    assert valid_until(str(file)) == end


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMIIBAAAA\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n\n-----END CERTIFICATE-----\n",
    ],
)
def test_of_another_file_nothing_is_known(tmp_path: Path, text: str) -> None:
    file = tmp_path / "shown.pem"
    file.write_text(text)

    assert valid_until(str(file)) is None
    assert "may not trust the authority" in why_hung_up(str(file), "certfile")
    assert valid_until(str(tmp_path / "absent")) is None


def test_a_server_that_hangs_up_may_want_a_certificate_or_another_one(tmp_path: Path) -> None:
    past = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    issued = trustme.CA().issue_cert(
        "moor.example", not_before=datetime(2019, 1, 1, tzinfo=UTC), not_after=past
    )
    file = str(tmp_path / "shown.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(file)

    assert why_hung_up("", "certfile in the URL") == (
        "it hung up in the TLS handshake: it may want a client certificate, and certfile in the URL names none"
    )
    assert why_hung_up(file, "certfile in the URL") == (
        f"it refuses the certificate {file}: it has expired, on 2020-01-02 03:04:05 UTC"
    )
