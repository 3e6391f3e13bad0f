"""The commands of docs/operate/clusters.md are run as they are printed: on a cluster of three brokers, and on a PostgreSQL that gets a
standby.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.servers import PrivateCluster
from tests.servers.free_places import place_in_memory
from tests.servers.installed import postgres_binaries
from tests.servers.postgres import FAST, PrivatePostgres

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
OF_BROKERS, OF_DATABASES = (ROOT / "docs" / "operate" / "clusters.md").read_text().split("## A PostgreSQL")
COMMAND = re.compile(r"^    ((?:moor|rabbitmq|psql|pg_)\S* .*)$", re.MULTILINE)
HBA_LINE = re.compile(r"^    (host .*)$", re.MULTILINE)


@pytest.fixture
def programs() -> Iterator[Path]:
    """A directory for programs that stand before those of the machine."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


def ran(command: str, environment: Mapping[str, str], programs: Path) -> str:
    binaries = postgres_binaries()
    path = f"{programs}:{Path(sys.executable).parent}:{binaries}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": path, "HOME": str(programs), "COLUMNS": "200", **environment},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_a_broker_of_one_node_becomes_one_of_three(programs: Path) -> None:
    with PrivateCluster(place=place_in_memory()) as cluster:
        first, *others = cluster.nodes
        tools = Path(shlex.split(first.ctl_command)[-1]).parent
        for tool in ("rabbitmqctl", "rabbitmq-queues", "rabbitmq-upgrade"):
            (programs / tool).write_text(f'#!/bin/sh\nexec /bin/sh {tools / tool} "$@"\n')
            (programs / tool).chmod(0o700)
        one = {"MOOR_BUS_URL": f"amqp://guest:guest@{first.address}/", "MOOR_CELLS": "harbour"}
        ran("moor broker declare", one, programs)
        for node in others:
            ran(f"rabbitmq-queues shrink {node.node} --errors-only", one, programs)

        said = ""
        for command in COMMAND.findall(OF_BROKERS):
            here = command
            for number, node in enumerate(others, 2):
                here = here.replace(f"rabbit@rabbit-{number}", node.node)
            said += ran(here, {**one, "MOOR_BUS_URL": cluster.url}, programs)

        rows = [line.split("\t") for line in said.splitlines()]
        nodes_of = {
            name: members.count("@")
            for name, kind, members in (row for row in rows if len(row) == 3)
            if kind == "quorum"
        }
        assert nodes_of["placement.claims"] == nodes_of["placement.work"] == 3
        assert {*nodes_of.values()} == {3}


def test_a_postgresql_gets_a_standby_that_takes_over(programs: Path) -> None:
    (line,) = HBA_LINE.findall(OF_DATABASES)
    copying, *others = [each for each in COMMAND.findall(OF_DATABASES) if each.startswith("pg_")]
    assert not others
    before, after = OF_DATABASES.split(copying)
    *following, promotion = COMMAND.findall(after)
    with PrivatePostgres(settings=FAST) as primary:
        at_primary = at(primary)
        rules = Path(ran("psql -Atc 'SHOW hba_file'", at_primary, programs).strip())
        trusted = rules.read_text()
        for name in ("pg-2", "localhost"):
            rules.write_text(f"{line.replace('pg-2', name)}\n{trusted}")
            wrong = "SELECT error FROM pg_hba_file_rules WHERE error IS NOT NULL"
            assert ran(f'psql -Atc "{wrong}"', at_primary, programs) == ""
        for command in COMMAND.findall(before):
            ran(command, at_primary, programs)

        directory = re.search(r"-D (\S+)", copying)
        assert directory
        here = copying.replace("pg-1", "localhost").replace(directory[1], "data")
        made = f"PATH={postgres_binaries()}:$PATH PGPASSWORD=... PGPORT={at_primary['PGPORT']} {here}"
        with PrivatePostgres(settings=FAST, data_by=made) as standby:
            said = ""
            while "replicator | streaming | sync" not in said:
                said = "".join(ran(command, at_primary, programs) for command in following)
            primary.kill()
            assert ran(promotion, at(standby), programs).split()[2] == "t"


def at(server: PrivatePostgres) -> dict[str, str]:
    host, _, port = server.address.partition(":")
    return {"PGHOST": host, "PGPORT": port, "PGUSER": "postgres"}
