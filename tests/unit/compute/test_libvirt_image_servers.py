"""Which servers a compute may download from, and at which addresses."""

import msgspec
import pytest

from compute_sim.libvirt.settings import LibvirtSettings, may_connect, read_server_networks, read_servers

ALL = ("https://*",)

# The servers of the setting; the scheme, host and port of a URL; whether it may lead there.
SERVERS = [
    ((), ("https", "debian.org", None), False),
    (ALL, ("https", "debian.org", None), True),
    (ALL, ("https", "debian.org", 443), True),
    (ALL, ("https", "debian.org", 8443), False),
    (ALL, ("http", "debian.org", None), False),
    (ALL, ("ftp", "debian.org", None), False),
    (ALL, ("file", "", None), False),
    (("HTTP://Images.Local:8080",), ("http", "images.local", 8080), True),
    (("http://images.local:8080",), ("http", "images.local.", 8080), True),
    (("http://images.local:8080",), ("http", "images.local", None), False),
    (("http://images.local",), ("http", "images.local.evil.org", None), False),
    (("http://images.local",), ("http", "evilimages.local", None), False),
    (("http://*.debian.org",), ("http", "cdimage.debian.org", None), True),
    (("http://*.debian.org",), ("http", "a.b.debian.org", None), True),
    (("http://*.debian.org",), ("http", "debian.org", None), False),
    (("http://*.debian.org",), ("http", "evildebian.org", None), False),
    (("http://10.1.2.3",), ("http", "10.1.2.3", 80), True),
    (("http://10.1.2.3",), ("http", "167838211", 80), False),
    (("http://[fd00:0::1]",), ("http", "fd00::1", None), True),
]


@pytest.mark.parametrize(("texts", "url", "allowed"), SERVERS)
def test_a_url_leads_only_to_servers_that_the_setting_names(
    texts: tuple[str, ...], url: tuple[str, str, int | None], *, allowed: bool
) -> None:
    assert any(each.has(*url) for each in read_servers(texts)) is allowed


PUBLIC = ("1.1.1.1", "168.0.0.1", "::ffff:1.1.1.1", "2606:4700::1111")
NOT_PUBLIC = """
    127.0.0.1 127.8.9.10 10.1.1.1 172.16.0.1 192.168.0.1 169.254.169.254 100.100.100.200 168.63.129.16 0.0.0.0 192.0.0.192 192.88.99.1 198.18.0.1
    224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::127.0.0.1 64:ff9b::7f00:1 64:ff9b:1::1
    2001::1 2001:db8::1 2002:7f00:1:: 3fff::1 5f00::1 fc00::1 fd00::1 fe80::1 fe80::1%eth0 fec0::1 ff02::1
"""


def test_only_public_addresses_are_connected_to_unless_a_network_is_named() -> None:
    (server,) = read_servers(ALL)

    assert [each for each in PUBLIC if not may_connect(server, each, ())] == []
    assert [each for each in NOT_PUBLIC.split() if may_connect(server, each, ())] == []


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("10.3.0.7", True),
        ("::ffff:10.3.0.7", True),
        ("10.4.0.7", False),
        ("fd12::7", True),
        ("fd13::7", False),
        ("127.0.0.1", False),
    ],
)
def test_a_named_network_is_allowed_and_no_other(address: str, *, allowed: bool) -> None:
    (server,) = read_servers(ALL)
    networks = read_server_networks(("10.3.0.0/16", "fd12::/16"))

    assert may_connect(server, address, networks) is allowed


@pytest.mark.parametrize(
    ("server", "address", "allowed"),
    [
        ("http://10.1.2.3", "10.1.2.3", True),
        ("http://10.1.2.3", "10.1.2.4", False),
        ("http://[fd00::1]", "fd00:0::1", True),
    ],
)
def test_an_address_that_is_named_as_a_server_needs_no_network(
    server: str, address: str, *, allowed: bool
) -> None:
    (found,) = read_servers((server,))

    assert may_connect(found, address, ()) is allowed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[
            ("image_servers", each)
            for each in (
                *("debian.org", "ftp://debian.org", "file:///etc", "http://", "http://a b", "http://a/path"),
                *("http://user@a", "http://a:0", "http://a:65536", "http://a*", "http://*.*", "http://*a"),
                *("https://", "http://a:", "http://[::1", "http://a\n"),
            )
        ],
        *[("image_networks", each) for each in ("10.3.0.1/16", "10.3.0.0/33", "images.local", "*")],
    ],
)
def test_a_setting_that_cannot_be_read_is_named_with_its_value(field: str, value: str) -> None:
    with pytest.raises(ValueError, match=field) as wrong:
        msgspec.convert({field: [value]}, LibvirtSettings)

    assert repr(value) in str(wrong.value)
