"""Until when a certificate is valid, and what it may mean that a server hung up on a client.

A server that refuses a client's certificate says why, and hangs up; under TLS 1.3 the client has then sent its first words
already, and often learns no more than that the connection was reset.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path

_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17
_END = "-----END CERTIFICATE-----"
_LONG = 0x80
# Years of two digits: 50 and more are of the last century (RFC 5280).
_PIVOT = 50


def valid_until(file: str) -> datetime | None:
    """The end of the first certificate in this PEM file; None if there is none that can be read."""
    try:
        text = Path(file).read_text(encoding="ascii")
        start = text.index(ssl.PEM_HEADER)
        der = ssl.PEM_cert_to_DER_cert(text[start : text.index(_END, start) + len(_END)])
        return _end_of(der)
    except (OSError, ValueError, IndexError):
        return None


def why_hung_up(certificate: str, setting: str) -> str:
    """What a client may have done wrong with whom a server spoke TLS, and then hung up. `certificate` is the client's file; empty if
    it shows none. `setting` is where that file is named.
    """
    if not certificate:
        return f"it hung up in the TLS handshake: it may want a client certificate, and {setting} names none"
    until = valid_until(certificate)
    if until is not None and until < datetime.now(UTC):
        return f"it refuses the certificate {certificate}: it has expired, on {until:%Y-%m-%d %H:%M:%S} UTC"
    return f"it hung up in the TLS handshake: it may not trust the authority of the certificate {certificate}"


def _end_of(der: bytes) -> datetime:
    """Walk to the certificate's validity, and read its second time."""
    _, certificate, _ = _value(der, _SEQUENCE)
    _, body, _ = _value(certificate, _SEQUENCE)
    tag, _, rest = _value(body)
    if tag == _VERSION:
        # Then the serial number follows.
        _, _, rest = _value(rest)
    for _ in ("algorithm", "issuer"):
        _, _, rest = _value(rest, _SEQUENCE)
    _, validity, _ = _value(rest, _SEQUENCE)
    _, _, rest = _value(validity)
    tag, end, _ = _value(rest)
    text = end.decode("ascii").removesuffix("Z")
    if tag == _UTC_TIME:
        text = f"{19 if int(text[:2]) >= _PIVOT else 20}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def _value(der: bytes, wanted: int | None = None) -> tuple[int, bytes, bytes]:
    """The tag and the content of the first element, and what follows it."""
    tag, length, start = der[0], der[1], 2
    if wanted not in (None, tag):
        raise ValueError(f"the element has tag {tag:#x}, must be {wanted:#x}")
    if length >= _LONG:
        start += length - _LONG
        length = int.from_bytes(der[2:start])
    if len(der) < start + length:
        raise ValueError("the element is cut off")
    return tag, der[start : start + length], der[start + length :]
