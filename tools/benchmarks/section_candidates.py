"""The candidate search alone, without server and text: only the columns, with some claims applied before each search."""

import os
from collections.abc import Iterator
from functools import partial
from itertools import count as count_from
from itertools import cycle, islice
from urllib.parse import parse_qsl

from msgspec import structs

from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import CandidatesQuery
from engine.candidates.search import find_candidates
from engine.inventories import InventoryState, ProviderState
from placement_worker.api.queries import candidates_query
from tools.benchmarks.clouds import Cloud, hosts_alone, trees
from tools.benchmarks.cpu import OneProcess
from tools.benchmarks.measuring import Details, Effort, Result, Work, measured

NEWEST = (1, 39)
SEARCHES = 100
# Equals 200 claims a second at 10 searches a second.
CLAIMS_BETWEEN = 20
LIMITS: dict[str, int | None] = {"50": 50, "1,000": 1_000, "none": None}


async def candidates_section(effort: Effort) -> list[Result]:
    clouds = (hosts_alone(10_000), trees(1_000)) if effort.servers else (hosts_alone(100),)
    return [
        await _searches(cloud, limit, effort)
        for cloud in clouds
        for limit in effort.some(dict.fromkeys(LIMITS))
    ]


async def _searches(cloud: Cloud, limit: str, effort: Effort) -> Result:
    index = index_of(cloud)
    query = structs.replace(candidates_query(parse_qsl(cloud.query), NEWEST), limit=LIMITS[limit])
    return await measured(
        "candidates, searched for",
        {"cloud": cloud.name, "limit": limit},
        {"python": OneProcess(os.getpid())},
        operations=effort.operations(SEARCHES, 1),
        effort=effort,
        prepare=partial(_prepare, index, query, min(LIMITS[limit] or cloud.candidates, cloud.candidates)),
    )


def index_of(cloud: Cloud) -> ProviderIndex:
    index = ProviderIndex()
    for state in states_of(cloud):
        index.put(state)
    return index


def states_of(cloud: Cloud) -> Iterator[ProviderState]:
    """As placement would publish them."""
    internals = count_from(1)
    for report in cloud.reports:
        for told in report.providers:
            yield ProviderState(
                internal=next(internals),
                id=told.id,
                name=told.name,
                root=report.root,
                parent=told.parent,
                inventories={
                    resource: InventoryState(**structs.asdict(inventory))
                    for resource, inventory in (told.inventories or {}).items()
                },
                traits=told.traits or (),
            )


def _prepare(index: ProviderIndex, query: CandidatesQuery, expected: int, count: int) -> Work:
    return partial(_search, index, query, expected, count)


async def _search(index: ProviderIndex, query: CandidatesQuery, expected: int, count: int) -> Details:
    claimed = cycle(range(index.rows))
    for number in range(count):
        for row in islice(claimed, CLAIMS_BETWEEN):
            state = index.state(row)
            index.use([(state.internal, dict.fromkeys(state.inventories, number))])
        found = len(find_candidates(index, query))
        assert found == expected, f"{found} candidates found, {expected} expected"
    return {}
