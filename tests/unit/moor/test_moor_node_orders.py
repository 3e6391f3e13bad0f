"""What `moor node` orders from Ironic, and what it refuses before it asks Ironic; files and groups that commands read."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ironic_sync.core.offers import CellMap
from kit import rest
from kit.rest import RestLimits
from laboratory.ironic import IronicServer, IronicSimSettings, SimulatedIronic, WorkDurations, available_nodes
from moor.clouds.cloud import cells_of_groups
from moor.commands import app
from moor.instances.requests import DriveOptions
from tests.waiting import wait_for

AWAY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ("[]", "empty list"),
        ("[{}]", "missing required field `interface`"),
        ('[{"interface": "deploy", "step": 3}]', "Expected `str`, got `int`"),
        ('[{"interface": "deploy", "step": "x", "priority": 3}]', "unknown field `priority`"),
        ('{"interface": "deploy", "step": "x"}', "Expected `array`, got `object`"),
        ('[{"interface"', "truncated"),
        ("nowhere.json", "neither a JSON list nor a readable file"),
    ],
)
def test_invalid_cleaning_steps_are_refused(steps: str, told: str, tmp_path: Path) -> None:
    for given in (steps, written(tmp_path, steps)):
        output = plain(ran(AWAY, "clean", "n1", "--steps", given, ends=2).output)

        assert "--steps is" in output
        assert told in output or given != steps


def ran(url: str, *words: str, ends: int = 0) -> Result:
    """This `moor node` command, which ends with this status."""
    result = CliRunner().invoke(app, ["node", *words, "--ironic", url])
    assert result.exit_code == ends, result.output
    return result


def ordered(url: str, *words: str) -> dict[str, Any]:
    """The result of this `moor node` command as JSON."""
    found = json.loads(ran(url, *words, "-o", "json").stdout)
    first = found[0] if isinstance(found, list) else found
    assert isinstance(first, dict)
    return first


@contextmanager
def an_ironic(power_s: float = 0.05, *, nodes: int = 2) -> Iterator[tuple[SimulatedIronic, str]]:
    """A simulated Ironic in a thread, so that a command can run here; yields its address as well."""
    settings = IronicSimSettings(
        delays=WorkDurations(clean_s=0.05, deploy_s=0.05, rescue_s=0.05, power_s=power_s)
    )
    ironic = SimulatedIronic(available_nodes(nodes), time.time, lambda *_: None, settings)
    server = IronicServer(ironic, "127.0.0.1", 0)
    loop = asyncio.new_event_loop()

    async def served() -> None:
        await asyncio.gather(ironic.run(), server.run())

    thread = threading.Thread(target=lambda: loop.run_until_complete(served()))
    thread.start()
    try:
        yield ironic, server.url
    finally:
        for part in (ironic, server):
            asyncio.run_coroutine_threadsafe(part.stop(), loop).result()
        thread.join()
        loop.close()


def test_nodes_are_cleaned_by_hand_by_the_steps_that_are_given(tmp_path: Path) -> None:
    steps = '[{"interface": "deploy", "step": "erase_devices_metadata", "args": {"fast": true}}]'
    with an_ironic() as (ironic, url):
        ran(url, "manage", "node-00000")
        for given in (steps, written(tmp_path, steps)):
            cleaned = ordered(url, "clean", "node-00000", "--steps", given)
            assert cleaned["ironic"]["provision_state"] == "manageable"
        # Ironic refuses this for a node that is available, and names the node.
        refused = ran(url, "clean", "node-00001", "--steps", steps, ends=1)
        assert "Ironic refuses 'clean' (400)" in plain(refused.output)
        # `manage` is reported once, each cleaning when it starts and when it ends.
        assert ironic.published == 5


INSTANCE = "11111111-2222-3333-4444-555555555555"


def deployed(ironic: SimulatedIronic) -> str:
    """An active node with the instance; returns its id."""
    node = next(each for each in ironic.nodes.values() if each.name == "node-00000")
    ironic.patch(node.uuid, [{"op": "add", "path": "/instance_uuid", "value": INSTANCE}])
    ironic.provision(node.uuid, "active")
    wait_for(lambda: ironic.nodes[node.uuid].provision_state == "active")
    return node.uuid


def test_the_power_of_an_instances_node_is_switched_by_the_instances_id() -> None:
    with an_ironic() as (ironic, url):
        node = deployed(ironic)
        for word, power in (("off", "power off"), ("on", "power on"), ("reboot", "power on")):
            assert ordered(url, "power", word, INSTANCE)["id"] == node
            wait_for(
                lambda power=power: (  # type: ignore[misc]
                    ironic.nodes[node].power_state == power and not ironic.nodes[node].target_power_state
                )
            )
        assert ordered(url, "show", INSTANCE)["ironic"]["instance_uuid"] == INSTANCE
        # No node has another instance.
        nobody = ran(url, "power", "off", INSTANCE[:-1] + "6", ends=1)
        assert "there is no node" in plain(nobody.output)


def test_a_node_is_rescued_with_a_new_password_and_released_again(tmp_path: Path) -> None:
    with an_ironic() as (ironic, url):
        node = deployed(ironic)
        rescued = ran(url, "rescue", INSTANCE, "-o", "json")
        assert json.loads(rescued.stdout)[0]["ironic"]["provision_state"] == "rescue"
        assert re.search(r"the password of user rescue is [\w-]{16}$", plain(rescued.stderr))
        assert ordered(url, "unrescue", node)["ironic"]["provision_state"] == "active"

        file = tmp_path / "password"
        file.write_text("of-mine\n")
        rescued = ran(url, "rescue", node, "--password-file", str(file))
        assert "of-mine" not in rescued.output
        assert "the password of user rescue" not in rescued.output
        file.write_text("\n")
        ran(url, "rescue", node, "--password-file", str(file), ends=2)
        # It needs an instance.
        refused = ran(url, "rescue", "node-00001", ends=1)
        assert "Ironic refuses 'rescue' (400)" in plain(refused.output)
        assert "the password of user rescue" not in refused.output


@pytest.fixture
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is made once, so that only the command itself waits."""
    monkeypatch.setattr(rest, "USUAL", RestLimits(tries_max=1))


@pytest.mark.usefixtures("_once")
@pytest.mark.parametrize(
    "words",
    [("console",), ("power", "off"), ("rescue",), ("maintenance", "on", "--reason", "disk"), ("manage",)],
)
def test_an_order_waits_until_ironic_has_finished_the_one_before(words: tuple[str, ...]) -> None:
    with an_ironic(power_s=1.0) as (ironic, url):
        name = "node-00001" if words == ("manage",) else "node-00000"
        deployed(ironic)
        ironic.set_power(name, "rebooting")
        assert plain(ran(url, *words, name).stderr).count("is locked by host ironic-sim-1") == 1


@pytest.mark.usefixtures("_once")
@pytest.mark.parametrize("hangs_s", [0.0, 2.5])
def test_nodes_without_an_order_are_named_if_ironic_goes_away_or_hangs(
    hangs_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server closes the connection after such an answer: what is asked then may have to be asked again.
    monkeypatch.setattr(rest, "USUAL", RestLimits(tries_max=2, answer_s_max=2))
    real = SimulatedIronic.set_maintenance

    def for_one(ironic: SimulatedIronic, ident: str, *, is_on: bool, reason: str | None = None) -> Any:
        if ironic.nodes[ident].name != "node-00000":
            time.sleep(hangs_s)
            raise RuntimeError("away")
        return real(ironic, ident, is_on=is_on, reason=reason)

    monkeypatch.setattr(SimulatedIronic, "set_maintenance", for_one)
    with an_ironic(nodes=3) as (_, url):
        last = "node-00002"
        names = ["node-00000", "node-00001", last]
        told = ran(url, "maintenance", "on", *names, "--reason", "x", "-o", "json", ends=1)

        assert "node node-00001: " in plain(told.stderr)
        assert f"nothing was ordered for {last}" in plain(told.stderr)
        assert [each["ironic"]["maintenance"] for each in json.loads(told.stdout)] == [True, False, False]


def test_a_node_that_is_named_twice_gets_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[str] = []
    real = SimulatedIronic.set_power

    def noted(ironic: SimulatedIronic, ident: str, target: str) -> Any:
        orders.append(ident)
        return real(ironic, ident, target)

    monkeypatch.setattr(SimulatedIronic, "set_power", noted)
    with an_ironic() as (ironic, url):
        ident = next(each.uuid for each in ironic.nodes.values() if each.name == "node-00000")
        told = ran(url, "power", "reboot", "node-00000", ident, "node-00000", "-o", "json")

        assert orders == [ident]
        assert len(json.loads(told.stdout)) == 1


def written(place: Path, text: str) -> str:
    file = place / "steps.json"
    file.write_text(text)
    return str(file)


def plain(text: str) -> str:
    """The output without the frame and its line breaks."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x1f\x8b\x08", "--user-data is .*, which is no text"),
        (b"a\0b", "contains the character NUL"),
        (b"x" * (64 * 1024), r"has 655\d\d characters, and a message carries at most 65536"),
    ],
)
def test_user_data_that_no_message_can_carry_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(content)

    with pytest.raises(click.BadParameter, match=why):
        DriveOptions(user_data=file).read()


def test_each_cell_has_a_conductor_group_and_what_is_stated_goes_before() -> None:
    usual = cells_of_groups(("a", "b"))
    assert (usual.groups, usual.default) == ({"a": "a", "b": "b"}, "a")

    stated = cells_of_groups(
        ("a", "b"), CellMap(groups={"a": "b", "rack1": "a"}, shards={"s": "a"}, default="b")
    )
    assert stated == CellMap(groups={"a": "b", "b": "b", "rack1": "a"}, shards={"s": "a"}, default="b")
