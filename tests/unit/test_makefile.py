"""`make demo` installs what runs, and only what needs the developers' tools installs these."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def steps_of(target: str) -> list[str]:
    told = subprocess.run(["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, check=True)
    return told.stdout.splitlines()


def test_the_demo_needs_no_developers_tools() -> None:
    steps = steps_of("demo")
    assert "sh .ci/venv.sh" in steps
    assert steps[-1] == ".venv/bin/moor demo"
    assert not any("dev" in step for step in steps)


@pytest.mark.parametrize("target", ["lint", "types", "layers"])
def test_checks_install_the_developers_tools(target: str) -> None:
    assert "sh .ci/venv.sh dev" in steps_of(target)


def test_after_the_tools_the_demo_installs_nothing() -> None:
    assert "touch .venv/.runs .venv/.installed" in steps_of("lint")
