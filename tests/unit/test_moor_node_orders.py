"""What `moor node` refuses before it asks Ironic anything."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from moor.__main__ import app
from moor.node_command import VERBS

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
        ("nowhere.json", "no JSON list and no file"),
    ],
)
def test_steps_of_cleaning_that_make_no_sense_are_refused(steps: str, told: str, tmp_path: Path) -> None:
    for given in (steps, written(tmp_path, steps)):
        ran = CliRunner().invoke(app, ["node", "clean", "n1", "--ironic", AWAY, "--steps", given])

        assert ran.exit_code == 2
        assert "--steps is" in plain(ran.output)
        assert told in plain(ran.output) or given != steps


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
    """Without the frame and its line ends."""
    return " ".join(text.replace("│", " ").split())
