"""The package as users install it: it is built, has its types, and a program that uses the client is checked against them."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from bus.message import type_of
from bus.messages import ALL
from tests.unit.test_repository import ROOMS

ROOT = Path(__file__).parents[3]
PROGRAM = """
from uuid import UUID

from moor.client import Client, Flavor, InstanceState, NoHostFound, SyncClient


async def boot(moor: Client, project: str) -> tuple[InstanceState, ...]:
    request = await moor.boot(Flavor(vcpus=1), count=2, project=project, hosts=["h1"], group=UUID(int=1), wait=60)
    async for state in request.follow():
        reveal_type(state)
    try:
        return await request.until_done()
    except NoHostFound as nowhere:
        reveal_type(nowhere.funnel.steps[0].removed)
        raise


def sizes(moor: SyncClient) -> None:
    for instance in moor.list_instances(state="active"):
        reveal_type(instance.host)
    reveal_type(moor.boot(Flavor(), count=1).until_done())
    reveal_type(moor.plan(Flavor(), hosts=["h1"]).fit)
"""
REVEALED = (
    "bus.messages.build.InstanceState",
    "int",
    "str",
    "tuple[bus.messages.build.InstanceState, ...]",
    "int",
)
# Each line is wrong, and mypy says so with this code.
WRONG = {
    'moor.boot(Flavor(vcpus="two"))': "arg-type",
    'moor.boot(Flavor(), count="two")': "arg-type",
    "moor.boot(Flavor(), cuont=2)": "call-arg",
    "moor.boot(vcpus=1)": "call-arg",
    'moor.set_host("h1", "broken")': "arg-type",
    "moor.list_instances().id": "attr-defined",
    "moor.show(7)": "arg-type",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python environment in which the built package is installed; what it depends on is that of this environment."""
    place = tmp_path_factory.mktemp("package")
    source = place / "source"
    for name in ROOMS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    # As `make wheel` does.
    document = subprocess.run(
        [sys.executable, "-m", "tools.pages.bus_reference"], check=True, cwd=ROOT, stdout=subprocess.PIPE
    )
    (source / "bus" / "asyncapi.json").write_bytes(document.stdout)
    build = ("wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(place), str(source))
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, env={**os.environ, "PIP_NO_INDEX": "1"})
    environment = place / "environment"
    venv.create(environment)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(packages)
    (ours,) = [path for path in sys.path if path.endswith("site-packages") and sys.prefix in path]
    (packages / "dependencies.pth").write_text(ours)
    return environment


def python(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Not in the checkout, whose folders would be imported.
    where = environment.parent / "elsewhere"
    where.mkdir(exist_ok=True)
    words = (str(environment / "bin" / "python"), "-P", *arguments)
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=where)


def checked(environment: Path, program: str) -> list[str]:
    """What mypy says of a user's program, checked strictly."""
    file = environment.parent / "program.py"
    file.write_text(program)
    # pika has no types; the package itself must not lose its own.
    config = environment.parent / "mypy.ini"
    config.write_text("[mypy]\n[mypy-pika.*]\nignore_missing_imports = true\n")
    options = (
        "--strict",
        "--no-error-summary",
        f"--config-file={config}",
        "--python-executable",
        str(environment / "bin" / "python"),
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, f"--cache-dir={environment.parent / 'cache'}", str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=environment.parent,
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_every_package_is_built_with_its_types_and_no_test_is(installed: Path) -> None:
    (packages,) = installed.glob("lib/python3*/site-packages")
    found = {each.name for each in packages.iterdir() if each.is_dir() and "dist-info" not in each.name}

    assert found == set(ROOMS)
    assert [name for name in ROOMS if not (packages / name / "py.typed").is_file()] == []


def test_the_installed_package_has_the_schemas_of_all_messages_where_the_docs_say(installed: Path) -> None:
    (command,) = re.findall(
        r'^    python3 (-c "print.*")$', (ROOT / "docs" / "index.md").read_text(), re.MULTILINE
    )

    printed = python(installed, *shlex.split(command))
    document = json.loads(Path(printed.stdout.strip()).read_text())
    assert set(document["channels"]) == {type_of(kind) for kind in ALL}


def test_the_installed_package_says_its_version_and_what_it_is(installed: Path) -> None:
    (metadata,) = installed.glob("lib/python3*/site-packages/*.dist-info/METADATA")
    fields = Parser().parsestr(metadata.read_text())

    printed = python(
        installed, "-c", "import sys; sys.argv[1:] = ['--version']; from moor.__main__ import main; main()"
    )
    assert printed.stdout.strip().split()[-1] == fields["Version"], printed.stderr
    assert fields["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in fields.get_all("Classifier", ())
    assert fields["Keywords"]


def test_a_users_program_is_checked_against_the_installed_types(installed: Path) -> None:
    said = checked(installed, PROGRAM)

    assert [line.split('"')[1].replace("builtins.", "") for line in said] == [*REVEALED]


def test_what_is_wrong_in_a_users_program_is_found(installed: Path) -> None:
    lines = [f"    {line}" for line in WRONG]
    head = "from moor.client import Flavor, SyncClient\n\n\ndef work(moor: SyncClient) -> None:\n"

    said = [line for line in checked(installed, head + "\n".join(lines) + "\n") if ": error:" in line]

    assert [line.rpartition("[")[2].rstrip("]") for line in said] == [*WRONG.values()], "\n".join(said)


def test_the_examples_are_checked_as_programs_of_users(installed: Path) -> None:
    examples = sorted((ROOT / "docs" / "examples").glob("*.py"))
    assert examples

    assert [line for each in examples for line in checked(installed, each.read_text())] == []
