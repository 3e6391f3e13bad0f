"""URLs that tenants name: nothing is downloaded but from servers that the operator names, and no server holds up a host."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trustme

from compute_sim.core.attempts import Work
from engine.flavors import Image
from laboratory.demo_guests import bootable_image
from tests.libvirt.driven_host import Host
from tests.libvirt.hostile_server import HostileServer
from tests.waiting import wait_for

MIB = 1024 * 1024


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer(bootable_image("guest is up\r\n")) as made:
        yield made


@pytest.fixture
def other() -> Iterator[HostileServer]:
    with HostileServer(b"secret", "127.0.0.2") as made:
        yield made


def fields_with(url: str, kind: str) -> dict[str, Any]:
    match kind:
        case "image":
            return {"image": Image(source=url)}
        case "kernel" | "ramdisk":
            return {"image": Image(source="tiny", **{kind: url})}
        case _:
            return {"config_drive": url}


KINDS = ("image", "kernel", "ramdisk", "config drive")
# How the server on 127.0.0.1 may be written.
WRITTEN = (
    *("127.0.0.1", "localhost", "2130706433", "0x7f000001", "017700000001", "127.1", "[::ffff:127.0.0.1]"),
    *("[::ffff:7f00:1]", "0.0.0.0", "0", "LOCALHOST"),  # noqa: S104 - the names of this machine
)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_downloaded_unless_the_operator_names_the_server(
    host: Host, server: HostileServer, kind: str
) -> None:
    failure = host.end_of(host.spawn(**fields_with(f"{server.url}/whole", kind)))

    assert failure == (
        f"image '{server.url}/whole' leads to {server.url}, which is none of the servers that the operator allows (image_servers)"
    )
    assert (server.asked, host.left) == ([], [])


def test_a_server_of_any_name_must_be_at_a_public_address(tmp_path: Path, server: HostileServer) -> None:
    with closing(Host(tmp_path, image_servers=(f"http://*:{server.port}",))) as host:
        for number, written in enumerate(WRITTEN, 1):
            url = f"http://{written}:{server.port}/whole"
            failure = host.end_of(host.spawn(number, image=Image(source=url)))
            assert "neither public nor in a network that the operator allows (image_networks)" in failure, (
                failure
            )
        for number, wrong in enumerate(("user@localhost", "user:pw@127.0.0.1", "debian.org@localhost"), 50):
            url = f"http://{wrong}:{server.port}/whole"
            failure = host.end_of(host.spawn(number, image=Image(source=url)))
            assert failure.endswith("a URL may not have a user or a password"), failure
            assert ":pw@" not in failure
        assert (server.asked, host.left) == ([], [])


@pytest.mark.parametrize(
    "settings",
    [
        {"image_servers": ("http://127.0.0.1:{port}",)},
        {"image_servers": ("http://localhost:{port}",), "image_networks": ("127.0.0.0/8",)},
        {"image_servers": ("http://*:{port}",), "image_networks": ("127.0.0.1/32",)},
        {"image_servers": ("http://*:{port}", "http://127.0.0.1:{port}")},
    ],
)
def test_what_the_operator_allows_is_downloaded_and_proxies_of_the_environment_are_not_asked(
    tmp_path: Path,
    server: HostileServer,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    named: dict[str, Any] = {
        key: tuple(each.format(port=server.port) for each in value) for key, value in settings.items()
    }
    name = "127.0.0.1" if "127.0.0.1" in named["image_servers"][-1] else "localhost"
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with closing(Host(tmp_path, **named)) as host:
        images = [
            f"http://{name}:{server.port}/{path}"
            for path in ("whole", "to//whole", f"to/http://{name}:{server.port}/whole")
        ]
        for number, url in enumerate(images, 1):
            assert (
                host.end_of(
                    host.spawn(number, image=Image(source=url, kernel=images[0]), config_drive=images[0])
                )
                == ""
            )
        assert {told for _, told in server.asked} == {f"{name}:{server.port}"}
        assert set(host.driver.images()) == set(images)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("localhost",), ""),
        (("127.0.0.1",), "cannot be downloaded: [SSL: CERTIFICATE_VERIFY_FAILED]"),
        (("elsewhere.example",), "cannot be downloaded: [SSL: CERTIFICATE_VERIFY_FAILED]"),
    ],
)
def test_a_certificate_must_be_of_the_name_and_not_of_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], words: str
) -> None:
    authority, certificate = trustme.CA(), tmp_path / "server.pem"
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert(*names).private_key_and_cert_chain_pem.write_to_path(str(certificate))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with HostileServer(bootable_image("up"), certificate=str(certificate)) as server:
        named = f"https://localhost:{server.port}"
        with closing(Host(tmp_path, image_servers=(named,), image_networks=("127.0.0.0/8",))) as host:
            failure = host.end_of(host.spawn(image=Image(source=f"{named}/whole")))
            assert words in failure if words else failure == "", failure


# What a server does, the settings, and words of the failure.
FAILING = [
    ("drip", {"image_s": 0.3}, "comes too slowly: "),
    ("headers", {"image_s": 0.3}, "comes too slowly: 0 bytes in the last 0.3 s"),
    ("silent", {"image_s": 0.3}, "comes too slowly: 0 bytes in the last 0.3 s"),
    ("to//silent", {"image_s": 0.3}, "comes too slowly: 0 bytes in the last 0.3 s"),
    ("steady", {"download_s": 0.5}, "is not there within 0.5 s"),
    ("endless", {"image_bytes_max": 3 * MIB}, "has more than 3145728 bytes"),
    ("packed", {}, "the server packs it (gzip), and was asked not to"),
    ("cut", {}, "cannot be downloaded: "),
    ("missing", {}, "the server answered 404"),
    ("to//to//to//to//to//to//whole", {}, "more than 5 redirects"),
]


@pytest.mark.parametrize("kind", ["image", "config drive"])
@pytest.mark.parametrize("failing", FAILING, ids=lambda failing: failing[0])
def test_a_download_that_does_not_end_well_fails_with_words_and_leaves_nothing(
    tmp_path: Path, server: HostileServer, failing: tuple[str, dict[str, Any], str], kind: str
) -> None:
    path, settings, words = failing
    if kind == "config drive" and "image_bytes_max" in settings:
        words = "has more than 67108864 bytes"
    with closing(Host(tmp_path, image_servers=(server.url,), **settings)) as host:
        failure = host.end_of(host.spawn(**fields_with(f"{server.url}/{path}", kind)))

        assert failure.startswith(f"image '{server.url}/{path}'"), failure
        assert words in failure, failure
        assert host.left == []


DRIPPING = ("drip", "headers", "silent", "drip/2", "drip/3", "headers/2", "silent/2", "drip")


def test_downloads_that_drip_hold_up_no_other_order(tmp_path: Path, server: HostileServer) -> None:
    with closing(Host(tmp_path, image_servers=(server.url,), image_s=600.0)) as host:
        assert [host.end_of(host.spawn(number)) for number in (1, 2, 3)] == ["", "", ""]
        orders = [
            host.spawn(number, image=Image(source=f"{server.url}/{path}"))
            for number, path in enumerate(DRIPPING, 10)
        ]
        dripping = [host.begun(each) for each in orders]
        # What waits for another's download asks for nothing.
        wait_for(lambda: len(server.asked) == len({*DRIPPING}))
        host.driver.begin(host.respawn(1, image=Image(source=f"{server.url}/drip/of-a-rebuild")), 0.0)
        wait_for(lambda: len(server.asked) == len({*DRIPPING}) + 1)

        assert host.work_of(host.stop(instance=2)) == Work()
        assert host.destroy(3) == ""
        assert host.end_of(host.spawn(4)) == ""
        assert all(host.driver.look_at(each, 0.0).left_ms for each in dripping)
        # What drips ends with its instance.
        for number in (1, 2, 4, *range(10, 10 + len(dripping))):
            assert host.destroy(number) == ""
        assert host.left == []


def test_qemu_img_is_told_each_format_and_may_have_little_memory(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, programs, told = shutil.which("qemu-img"), tmp_path / "bin", tmp_path / "told"
    programs.mkdir()
    (programs / "qemu-img").write_text(f'#!/bin/sh\necho "$(ulimit -v) $*" >> {told}\nexec {real} "$@"\n')
    (programs / "qemu-img").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    qcow2 = host.settings.images_folder / "qcow2"
    subprocess.run((str(real), "create", "-q", "-f", "qcow2", qcow2, "1M"), check=True)
    for number, source in enumerate(("tiny", "qcow2"), 1):
        assert host.end_of(host.spawn(number, image=Image(source=source))) == ""

    lines = [each.split() for each in told.read_text().splitlines()]
    assert {line[1] for line in lines} == {"info", "create"}
    for limit, what, *words in lines:
        assert int(limit) <= MIB
        assert "-f" in words
        assert what != "create" or "-F" in words


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("{other}/whole", "leads to {other}, which is none of the servers that the operator allows"),
        ("//127.0.0.2:{port}/whole", "which is none of the servers that the operator allows"),
        ("file:///etc/passwd", "which is none of the servers that the operator allows"),
        ("ftp://127.0.0.1/x", "which is none of the servers that the operator allows"),
        ("https://127.0.0.1:{own}/whole", "which is none of the servers that the operator allows"),
        ("http://user:pw@127.0.0.1:{own}/whole", "a URL may not have a user or a password"),
        ("http://[::1", "cannot be downloaded: "),
    ],
)
def test_a_redirect_is_checked_like_the_first_address(
    tmp_path: Path, server: HostileServer, other: HostileServer, target: str, words: str
) -> None:
    named = {"other": other.url, "port": other.port, "own": server.port}
    with closing(Host(tmp_path, image_servers=(server.url,))) as host:
        failure = host.end_of(host.spawn(image=Image(source=f"{server.url}/to/{target.format(**named)}")))

        assert words.format(**named) in failure, failure
        assert (other.asked, host.left) == ([], [])
