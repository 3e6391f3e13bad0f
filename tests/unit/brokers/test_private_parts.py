"""The undocumented parts of libraries that this project uses are as it expects. pyproject.toml bounds these libraries above.

A failure here means that a new version changed such a part: adapt the file named, then raise the bound.
"""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
BOUNDED = ("aio-pika", "aiormq", "pamqp", "uvicorn")


@pytest.mark.parametrize("name", BOUNDED)
def test_a_library_with_private_parts_in_use_is_bounded_above(name: str) -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    needed = {each.name: each for each in map(Requirement, project["dependencies"])}

    assert "<" in {each.operator for each in needed[name].specifier}
