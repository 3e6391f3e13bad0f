"""What `moor node` orders from Ironic, and what it refuses before it asks Ironic."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compute_sim.ironic import Delays, IronicServer, IronicSimSettings, SimulatedIronic, available_nodes
from moor.bare_metal.node_command import VERBS
from moor.commands import app

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
        ran = CliRunner().invoke(app, ["node", "clean", "n1", "--ironic", AWAY, "--steps", given])

        assert ran.exit_code == 2
        assert "--steps is" in plain(ran.output)
        assert told in plain(ran.output) or given != steps


@contextmanager
def an_ironic() -> Iterator[tuple[SimulatedIronic, str]]:
    """A simulated Ironic in a thread, so that a command can run here; yields its address as well."""
    settings = IronicSimSettings(delays=Delays(clean_s=0.05))
    ironic = SimulatedIronic(available_nodes(2), time.time, lambda *_: None, settings)
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
        here = ("--ironic", url, "--json")
        assert CliRunner().invoke(app, ["node", "manage", "node-00000", *here]).exit_code == 0
        for given in (steps, written(tmp_path, steps)):
            ran = CliRunner().invoke(app, ["node", "clean", "node-00000", "--steps", given, *here])

            assert ran.exit_code == 0, ran.output
            (cleaned,) = json.loads(ran.output)
            assert cleaned["ironic"]["provision_state"] == "manageable"
        # Ironic refuses this for a node that is available, and names the node.
        ran = CliRunner().invoke(app, ["node", "clean", "node-00001", "--steps", steps, *here])
        assert ran.exit_code == 1
        assert "Ironic refuses 'clean' (400)" in plain(ran.output)
        # `manage` is reported once, each cleaning when it starts and when it ends.
        assert ironic.published == 5


def test_every_verb_of_ironic_has_its_own_help() -> None:
    listed = plain(CliRunner().invoke(app, ["node", "--help"]).output)

    for verb, says in VERBS.items():
        assert verb in listed
        assert says.partition(":")[0][:20] in plain(CliRunner().invoke(app, ["node", verb, "--help"]).output)


def written(place: Path, text: str) -> str:
    file = place / "steps.json"
    file.write_text(text)
    return str(file)


def plain(text: str) -> str:
    """The output without the frame and its line breaks."""
    return " ".join(text.replace("│", " ").split())
