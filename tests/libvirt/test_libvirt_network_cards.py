"""The addresses of network cards: no two guests of a machine share one, and a guest keeps its own through moves and rebuilds."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from compute_sim.libvirt.guest_domains import mac_of
from engine.inventories import ConsumerId
from tests.libvirt.driven_host import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with closing(Host(tmp_path, network="default")) as made:
        yield made


def macs(host: Host, number: int = 1) -> list[str]:
    with host.libvirt() as connection:
        text = connection.lookupByUUID(UUID(int=number).bytes).XMLDesc()
    return re.findall("<mac address='([^']*)'", text)


def stopped_and_received(host: Host) -> str:
    """Why the first instance cannot move to its own host."""
    assert host.work_of(host.stop()).failure == ""
    return host.work_of(host.receive()).failure


def test_addresses_of_many_guests_and_of_their_cards_differ() -> None:
    found = {mac_of(ConsumerId(uuid4()), card) for _ in range(10_000) for card in (0, 1)}
    neighbours = {mac_of(ConsumerId(UUID(int=number)), card) for number in range(100) for card in (0, 1)}

    # 40 bits: of 20,000 addresses, two are equal once in 5,000 times.
    assert (len(found), len(neighbours)) == (20_000, 200)
    # Locally administered, and of one card.
    assert {int(each[:2], 16) & 3 for each in found} == {2}


def test_a_guest_gets_an_address_that_no_domain_on_the_machine_has(host: Host) -> None:
    first, last = 7, 7 + 2**24
    assert host.end_of(host.spawn(first)) == host.end_of(host.spawn(last)) == ""
    assert macs(host, first) != macs(host, last)

    # The address that the next one would get is that of a domain of somebody else.
    (wanted,) = macs(host, first)
    assert host.destroy(first) == ""
    with host.libvirt() as connection:
        text = connection.lookupByName("test").XMLDesc().replace("<name>test</name>", "<name>theirs</name>")
        begin, end = text.index("<uuid>"), text.index("</uuid>")
        card = f"<interface type='network'><mac address='{wanted.upper()}'/><source network='default'/></interface>"
        text = f"{text[:begin]}<uuid>{UUID(int=99)}{text[end:]}".replace("</devices>", f"{card}</devices>")
        connection.defineXML(text)
    assert host.end_of(host.spawn(first)) == ""
    assert macs(host, first) not in ([wanted], macs(host, 99))


def test_a_guest_keeps_its_address_when_it_is_rebuilt_and_moved(host: Host) -> None:
    assert host.end_of(host.spawn()) == ""
    before = macs(host)
    assert host.work_of(host.respawn(1)).failure == ""
    assert macs(host) == before
    assert stopped_and_received(host) == ""
    assert macs(host) == before


def test_a_guest_does_not_come_to_where_its_address_is_in_use(host: Host) -> None:
    assert host.end_of(host.spawn()) == host.end_of(host.spawn(2)) == ""
    (address,) = macs(host, 2)
    order = next((host.folder / "instances").glob("*/*0001.1/order.json"))
    order.write_text(json.dumps(json.loads(order.read_bytes()) | {"macs": [address]}))

    failure = stopped_and_received(host)

    twin = "moor-00000000-0000-0000-0000-000000000002-1"
    assert failure == f"its network card has the address {address}, which is in use here by a card of {twin}"
    assert host.domains == [twin]
