"""The top of the repository has the rooms and what every project has, and nothing else."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {
    *(
        "kit",
        "bus",
        "engine",
        "placement_worker",
        "scheduler_worker",
        "cell_conductor",
        "compute_sim",
        "ironic_sync",
        "nova_bridge",
        "moor",
        "laboratory",
    ),
    *("tests", "tools", "deploy", "docs"),
}
FILES = {
    "pyproject.toml",
    "README.md",
    "RELEASES",
    "CHANGELOG.md",
    "Makefile",
    "LICENSE",
    ".ci",
    ".gitignore",
}


def test_nothing_else_stands_at_the_top() -> None:
    # What is committed, and what would be: not what .gitignore names.
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    there = {each.partition("/")[0] for each in listed if (ROOT / each).exists()}

    assert there == ROOMS | FILES
