"""The benchmarks run, and fail when the measured work is wrong."""

import os
import sqlite3

import msgspec
import pytest
from rich.console import Console
from sqlalchemy.engine import make_url

from tools.benchmarks.__main__ import SECTIONS, measure
from tools.benchmarks.books import SqliteBooks, WrongBooksError
from tools.benchmarks.machine import this_machine
from tools.benchmarks.measuring import QUICK, Effort
from tools.benchmarks.report import as_json, show
from tools.benchmarks.section_libvirt import guest_costs, libvirt_section

REAL = Effort(runs=1, scale=1.0, kinds_max=1, servers=True)


@pytest.mark.timeout(300)
async def test_a_quick_run_measures_every_section_and_finds_all_books_in_order() -> None:
    # A check that finds a wrong answer, or books that contradict themselves, raises.
    results = await measure(tuple(SECTIONS), QUICK)

    assert [(result.section, *map(str, result.what.values())) for result in results] == [
        ("bus, one way", "memory", "200"),
        ("bus, asked and answered", "memory", "200", "4"),
        ("claims", "sqlite", "1", "on one", "200"),
        ("claims over the bus", "memory", "sqlite", "1", "200"),
        ("hosts, chosen", "100 trees of 5", "different"),
        ("hosts, chosen", "100 trees of 5, pools", "rich"),
        ("hosts, chosen for one", "100 trees of 7", "rich"),
        ("hosts, chosen after a change", "100 trees of 7", "rich"),
        ("plans", "100 trees of 5", "fits nowhere"),
        ("plans", "100 trees of 5, pools", "rich"),
        ("claims over HTTP", "100 hosts", "on 10 of them", "8", "moorage"),
        ("claims over HTTP", "100 hosts", "on 10 of them", "1", "moorage"),
        ("claims over HTTP, paced", "100 hosts", "200", "moorage"),
        ("candidates over HTTP", "100 hosts", "none", "moorage"),
        ("waits beside hard questions", "sqlite", "HTTP", "GET /", "all of them at once"),
        ("waits beside hard questions", "sqlite", "HTTP", "claim", "all of them at once"),
        ("waits beside hard questions", "sqlite", "unix", "claim", "all of them at once"),
        ("claims, all or none", "sqlite", "100", "10"),
        ("events of nodes", "memory", "sqlite", "100"),
        ("a ring of daemons", "memory", "60", "4", "first sync"),
        ("a ring of daemons", "memory", "60", "4", "200 notifications"),
        ("a ring of daemons", "memory", "60", "4", "d1 killed"),
    ]
    for result in results:
        assert result.rate > 0, result
        assert all(run.operations >= 2 for run in result.runs), result
        assert all(result.us(kind) > 0 for kind in result.kinds), result
        assert all(run.ours > 0 for run in result.runs), result
    by_section = {result.section: result for result in results}
    assert by_section["claims over HTTP"].kinds == ("generator", "server")

    machine = this_machine()
    told = msgspec.json.decode(as_json(machine, results))
    assert [each["section"] for each in told["results"]] == [result.section for result in results]
    assert told["machine"]["processors"] == os.cpu_count()
    console = Console(record=True, width=200, quiet=True)
    show(console, machine, results)


async def test_real_guests_are_measured_and_removed() -> None:
    # A guest that is not active, and one that is left, raises.
    (result,) = await libvirt_section(REAL)

    assert result.kinds == ("generator", "compute", "libvirtd", "guests", "broker")
    assert all(result.us(kind) > 0 for kind in result.kinds), result
    (line,) = guest_costs([result])
    assert line.startswith("real guests: 10 guests are active ")


async def test_books_that_contradict_themselves_fail_a_benchmark() -> None:
    with pytest.raises(WrongBooksError, match="1 contradictions"):
        await _open_and_falsify()


async def _open_and_falsify() -> None:
    async with SqliteBooks().opened() as opened:
        file = sqlite3.connect(make_url(opened.url).database or "")
        file.execute("UPDATE providers SET used = json_set(used, '$.\"1\"', 1) WHERE id = 1")
        file.commit()
        file.close()
