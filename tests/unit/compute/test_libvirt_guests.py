"""Guests that are there already, what is read back of them, their CPUs, and where their images may come from."""

import re
import subprocess
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from bus.messages.cell import AdoptGuest
from compute_sim.core.trees import flaw_of
from compute_sim.libvirt import guest_domains
from compute_sim.libvirt.core.domains import adopted, domain_xml, held_by
from compute_sim.libvirt.core.layout import HostOffer, layout_of
from compute_sim.libvirt.core.machine import cpus_in_words, read_cpus, read_machine
from compute_sim.libvirt.core.planning import ChosenCpus, NoPlan, choose_cpus, plan_guest
from compute_sim.libvirt.core.plans import NAMESPACE, ForeignGuest, GuestPlan, PlannedMediated
from compute_sim.libvirt.core.trees import tree_of
from compute_sim.libvirt.images import CachedImages, ImageUser, downloaded
from compute_sim.libvirt.settings import (
    LibvirtRules,
    LibvirtSettings,
    may_connect,
    read_server_networks,
    read_servers,
)
from compute_sim.libvirt.work import WorkFailed
from engine.inventories import ConsumerId
from tests.unit.compute.libvirt_machines import (
    DATA,
    ROOT,
    a_layout,
    an_order,
    named,
    read_back,
    samples,
    specs,
)

DOMAIN = (DATA / "foreign_domain.xml").read_text()
THEIRS = ConsumerId(UUID("c7a5fdbd-edaf-9455-926a-d65c16db1809"))
LAYOUT = a_layout()
CLAIM = {
    "NUMA0": {"PCPU": 2, "CUSTOM_MEMORY_MB_PAGES_2048": 1024},
    "NUMA1": {"VCPU": 1, "CUSTOM_MEMORY_MB_PAGES_2048": 512},
    "0000:81:00.0": {"SRIOV_NET_VF": 1},
    "0000:03:00.0": {"CUSTOM_PCI_144D_A808": 1},
    "0000:5e:00.0": {"VGPU": 1},
}


def an_adoption(claim: dict[str, dict[str, int]] = CLAIM) -> AdoptGuest:
    order = an_order(LAYOUT, claim)
    return AdoptGuest(
        cell=order.cell,
        host=order.share.host,
        instance=THEIRS,
        attempt=7,
        flavor=order.flavor,
        share=order.share,
        name="database",
    )


def with_metadata(metadata: str) -> str:
    """The domain as libvirt has it after the metadata is set: it gives all elements the prefix."""
    prefixed = re.sub(r"<(/?)([a-z])", r"<\1moorage:\2", metadata)
    named = prefixed.replace("<moorage:guest", f'<moorage:guest xmlns:moorage="{NAMESPACE}"', 1)
    return DOMAIN.replace("</metadata>", f"{named}</metadata>")


def test_an_adopted_guest_is_ours_and_holds_what_its_domain_has() -> None:
    metadata = adopted(DOMAIN, an_adoption(), LAYOUT)
    assert isinstance(metadata, str), metadata
    plan = held_by(with_metadata(metadata))

    assert isinstance(plan, GuestPlan)
    assert (plan.instance, plan.attempt, plan.cell, plan.name) == (
        THEIRS,
        7,
        "cell1",
        "database",
    )
    assert plan.share == an_adoption().share
    assert plan.dedicated == (1, 9)
    assert [each.address for each in plan.functions] == ["0000:81:10.0", "0000:03:00.0"]
    assert plan.mediated == (
        PlannedMediated(UUID("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a01"), "nvidia-222", "0000:5e:00.0"),
    )


def test_an_adopted_guest_is_reserved_no_more_and_nobody_gets_what_it_has() -> None:
    foreign = held_by(DOMAIN)
    assert isinstance(foreign, ForeignGuest)
    assert named(tree_of(LAYOUT, (foreign,)))["NUMA0"].inventories["PCPU"].reserved == 2
    metadata = adopted(DOMAIN, an_adoption(), LAYOUT)
    assert isinstance(metadata, str)

    other = an_order(LAYOUT, {"NUMA0": {"PCPU": 6, "MEMORY_MB": 512}}, specs(6, 512, cpu_policy="dedicated"))
    refusal = plan_guest(other, LAYOUT, (held_by(with_metadata(metadata)),))
    assert isinstance(refusal, NoPlan)
    assert "1 is database's, 9 is database's" in refusal.reason


@pytest.mark.parametrize(
    ("provider", "amounts", "words"),
    [
        ("NUMA0", {"PCPU": 3}, "domain database has 2 dedicated CPUs (1,9), and 3 are claimed for it"),
        ("0000:81:00.0", {}, "has 2 offered functions (0000:81:10.0, 0000:03:00.0), and 1 are claimed"),
        ("0000:5e:00.0", {"VGPU": 2}, "has 1 mediated devices, and 2 are claimed"),
        (
            "NUMA1",
            {"CUSTOM_MEMORY_MB_PAGES_2048": 512},
            "domain database has 3 processors, and only 2 are claimed for it",
        ),
        (
            "NUMA1",
            {"VCPU": 1, "CUSTOM_MEMORY_MB_PAGES_2048": 510},
            "domain database has 1536 MB of memory, and only 1534 are claimed for it",
        ),
    ],
)
def test_a_claim_that_says_something_else_is_refused(
    provider: str, amounts: dict[str, int], words: str
) -> None:
    refusal = adopted(DOMAIN, an_adoption({**CLAIM, provider: amounts}), LAYOUT)

    assert isinstance(refusal, NoPlan)
    assert words in refusal.reason


def test_another_domain_is_not_the_instance() -> None:
    order = structs.replace(an_adoption(), instance=ConsumerId(UUID(int=3)))

    assert adopted(DOMAIN, order, LAYOUT) == NoPlan(
        f"domain database has the uuid {THEIRS}, and is not instance {UUID(int=3)}"
    )


SCHEMAS = Path("/usr/share/libvirt/schemas")
TEST_DRIVER = "test:///default"


def virsh(*words: str) -> str:
    done = subprocess.run(
        ("virsh", "--quiet", "--connect", TEST_DRIVER),
        input="\n".join(words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_libvirts_schema_allows_each_domain(tmp_path: Path) -> None:
    paths = []
    for number, plan in enumerate(samples()):
        paths.append(tmp_path / f"{number}.xml")
        paths[-1].write_text(domain_xml(plan))

    assert_valid("domain.rng", paths)


def assert_valid(schema: str, paths: list[Path]) -> None:
    assert paths
    done = subprocess.run(
        ("xmllint", "--noout", "--relaxng", str(SCHEMAS / schema), *map(str, paths)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_test_driver_gives_each_domain_back(tmp_path: Path) -> None:
    # The test driver has guests of one architecture, and no machine types.
    plans = [structs.replace(plan, domain_type="test", arch="i686", machine_type="") for plan in samples()]
    words = []
    for number, plan in enumerate(plans):
        path = tmp_path / f"{number}.xml"
        path.write_text(domain_xml(plan))
        words += [f"define {path}", f"dumpxml --inactive {plan.domain}"]
    printed = virsh(*words)
    found = [
        f"<domain{each}</domain>" for each in printed.replace("</domain>", "<domain").split("<domain")[1::2]
    ]

    assert [read_back(text) for text in found] == plans


def test_a_guest_is_planned_on_the_machine_of_the_test_driver(tmp_path: Path) -> None:
    capabilities = (
        "<capabilities>"
        + virsh("capabilities").partition("<capabilities>")[2].partition("</capabilities>")[0]
    )
    machine = read_machine(capabilities + "</capabilities>")
    offer = HostOffer(
        name="t1", domain_type="test", cpus_dedicated=frozenset({1, 2, 9}), memory_reserved_mb=0
    )
    layout = layout_of(ROOT, machine, offer)
    tree = tree_of(layout)
    plan = plan_guest(
        an_order(layout, {"NUMA0": {"PCPU": 2, "MEMORY_MB": 64}}, specs(2, 64, cpu_policy="dedicated")),
        layout,
    )

    assert flaw_of(tree, tree) is None
    assert {name: set(each.inventories) for name, each in named(tree).items()} == {
        "": set(),
        "NUMA0": {"VCPU", "PCPU", "MEMORY_MB"},
        "NUMA1": {"VCPU", "PCPU", "MEMORY_MB"},
    }
    assert isinstance(plan, GuestPlan), plan
    assert plan.pins == ((1,), (2,))
    path = tmp_path / "guest.xml"
    path.write_text(domain_xml(plan))
    printed = virsh(f"create {path}", f"vcpupin {plan.domain}", f"dominfo {plan.domain}")
    assert str(plan.instance) in printed
    assert [line.split() for line in printed.splitlines() if line.strip().startswith(("0 ", "1 "))] == [
        ["0", "1"],
        ["1", "2"],
    ]


def test_no_two_guests_of_a_machine_have_network_cards_of_one_address() -> None:
    (theirs,) = guest_domains.macs_of(THEIRS, 1, (), {})
    assert guest_domains.macs_of(THEIRS, 1, (), {theirs: "another guest"}) != (theirs,)


def test_whole_cores_are_filled_before_cores_are_opened() -> None:
    threads = {cpu: core for core in ((0, 1), (2, 3), (4, 5)) for cpu in core}
    # One thread of the first core is taken: three CPUs are a whole core and that core's rest.
    chosen = choose_cpus(3, range(6), frozenset({1, 2, 3, 4, 5}), threads, "prefer")

    assert chosen == ChosenCpus((2, 3, 1))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), (" 5 , 1-2 ", {1, 2, 5}), ("0-4,^2", {0, 1, 3, 4})],
)
def test_sets_of_cpus_are_read(text: str, cpus: set[int]) -> None:
    assert read_cpus(text) == cpus


@pytest.mark.parametrize("text", ["x", "1-", "3-1", "0-99999", "1,,2", "-1", "\u0661"])
def test_wrong_sets_of_cpus_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="cpus_shared has"):
        read_cpus(text, "cpus_shared")


def test_sets_of_cpus_are_written_in_ranges() -> None:
    assert cpus_in_words([8, 0, 1, 2, 3, 3]) == "0-3,8"
    assert cpus_in_words([]) == ""


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


def test_a_name_that_leads_into_the_operators_own_network_is_not_connected_to() -> None:
    rules = LibvirtRules(image_servers=("http://*",))
    downloading = downloaded("http://localhost/image", rules, lambda: None)
    with pytest.raises(WorkFailed, match="whose address is neither public nor in a network"), downloading:
        pass


def test_a_disk_that_was_saved_without_a_project_is_the_image_of_its_instance_alone(tmp_path: Path) -> None:
    name = f"{THEIRS}-5"
    images = CachedImages(LibvirtRules(folder=str(tmp_path), images_gb=1))
    images.begin()
    (tmp_path / "images" / name).write_text("secret")

    own = images.image(name, "", ImageUser(saved=name), lambda: None, is_disk=False)

    assert Path(own.path).read_text() == "secret"
    with pytest.raises(WorkFailed, match="an instance that was saved is an image for its project alone"):
        images.image(name, "", ImageUser(), lambda: None, is_disk=False)
