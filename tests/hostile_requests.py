"""Requests of a hostile client, and a cloud that makes them hard: over HTTP as bytes, over the bus as messages."""

import json
from urllib.parse import urlencode

from msgspec import Struct

from bus.messages.books import AskCandidates, RequestGroup
from bus.messages.placement import ReportInventory
from engine.candidates.query import CandidatesQuery
from engine.inventories import ProviderId, ReportedInventory, ReportedProvider
from tests.contracts.placement_orders import provider
from tests.unit.placement.candidate_worlds import World
from tests.unit.placement.hard_questions import (
    a_tight_packing,
    eleven_over_half_of_ten_nodes,
    pairs_on_a_chain,
)

GROUPS = "&".join(f"resources{number}=VCPU:1" for number in range(1, 901))
# The largest number of groups in one message.
GROUPS_OF_A_MESSAGE = 64
VERSION = "openstack-api-version: placement 1.39\r\n"
# Each hard world has its own resource class, so that a query concerns only one of them.
_PGPU, _VGPU, _MEMORY = "PGPU", "VGPU", "MEMORY_MB"


class Hostile(Struct, frozen=True):
    """A request, and the status of its answer."""

    text: bytes
    status: int


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\n{VERSION}\r\n".encode()


def put(path: str, body: bytes) -> bytes:
    about = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"PUT {path} HTTP/1.1\r\n{VERSION}{about}\r\n".encode() + body


def target(query: CandidatesQuery) -> str:
    pairs: list[tuple[str, str]] = [
        ("limit", str(query.limit)),
        ("group_policy", query.group_policy or "none"),
    ]
    for group in query.groups:
        amounts = ",".join(f"{resource}:{amount}" for resource, amount in group.resources.items())
        pairs.append((f"resources{group.suffix}", amounts))
        pairs += [(f"required{group.suffix}", ",".join(names)) for names in group.required]
    pairs += [("same_subtree", ",".join(suffixes)) for suffixes in query.same_subtree]
    return f"/allocation_candidates?{urlencode(pairs)}"


def hard_searches() -> dict[str, Hostile]:
    """Each query is for one of the worlds in `hard_worlds`."""
    eleven, chain, packing = (
        target(query) for _, query in (eleven_over_half_of_ten_nodes(), pairs_on_a_chain(), a_tight_packing())
    )
    return {
        "eleven over half of ten nodes": Hostile(get(eleven), 200),
        "40 groups in pairs on a chain": Hostile(get(chain.replace("VCPU", _MEMORY)), 200),
        "a tight packing": Hostile(get(packing.replace("PGPU", _VGPU)), 400),
        "900 groups": Hostile(get(f"/allocation_candidates?{GROUPS}&group_policy=none&limit=2000"), 200),
    }


def large_bodies(host: ProviderId) -> dict[str, Hostile]:
    path = f"/resource_providers/{host}/traits"
    long_names = json.dumps(["A" * 275] * 49_000).encode()
    short_names = json.dumps(["CUSTOM_AB"] * 1_100_000).encode()
    return {
        "14 MB of long traits": Hostile(
            put(path, b'{"resource_provider_generation":1,"traits":%b}' % long_names), 400
        ),
        "14 MB of short traits": Hostile(
            put(path, b'{"resource_provider_generation":1,"traits":%b}' % short_names), 413
        ),
        "14 MB of one trait": Hostile(put(path, b'{"traits":["%b"]}' % (b"A" * 14_000_000)), 400),
        "14 MB of NUL": Hostile(put(path, b'{"traits":["%b"]}' % (b"\\u0000" * 2_300_000)), 400),
        "a key of 8 MB": Hostile(
            put(path, b'{"%b":[%b"\\u0000"]}' % (b"k" * 8_000_000, b"0," * 40_000)), 400
        ),
        "49,000 lists": Hostile(put(path, b"[%b0]" % (b"[]," * 49_000)), 400),
    }


def hard_messages() -> dict[str, AskCandidates]:
    """These queries as messages."""
    return {
        "eleven over half of ten nodes": _message(eleven_over_half_of_ten_nodes()[1], _PGPU),
        "40 groups in pairs on a chain": _message(pairs_on_a_chain()[1], _MEMORY),
        "a tight packing": _message(a_tight_packing()[1], _VGPU),
        "64 groups": AskCandidates(
            groups=tuple(
                RequestGroup(suffix=f"_{number}", resources={"VCPU": 1})
                for number in range(GROUPS_OF_A_MESSAGE)
            ),
            group_policy="none",
            limit=1_000,
        ),
    }


def hard_worlds(cell: str = "c1") -> tuple[ReportInventory, ...]:
    return (
        _report(cell, eleven_over_half_of_ten_nodes()[0], _PGPU),
        _report(cell, pairs_on_a_chain()[0], _MEMORY),
        _report(cell, a_tight_packing()[0], _VGPU),
    )


def many_hosts(count: int, cell: str = "c1") -> tuple[ReportInventory, ...]:
    return tuple(_host(cell, f"many-{number}") for number in range(count))


def claim_body(host: str) -> bytes:
    """The body of a claim over HTTP, for a new consumer on one of the many hosts."""
    body = {
        "allocations": {str(provider(host)): {"resources": {"VCPU": 1}}},
        "project_id": "shop",
        "user_id": "ann",
        "consumer_generation": None,
    }
    return json.dumps(body).encode()


def _message(query: CandidatesQuery, resource: str) -> AskCandidates:
    groups = tuple(
        RequestGroup(
            suffix=group.suffix,
            resources={resource: amount for amount in group.resources.values()},  # noqa: B035 - there is one
            required=group.required,
        )
        for group in query.groups
    )
    return AskCandidates(
        groups=groups,
        group_policy=query.group_policy,
        same_subtree=query.same_subtree,
        limit=query.limit or 1,
    )


def _report(cell: str, world: World, resource: str) -> ReportInventory:
    index = world.index
    states = [index.state(row) for row in range(index.rows)]
    ids = {state.id: provider(f"{state.name} {resource}") for state in states}
    return ReportInventory(
        cell=cell,
        root=ids[states[0].root],
        providers=tuple(
            ReportedProvider(
                id=ids[state.id],
                name=f"{state.name} {resource}",
                parent=None if state.parent is None else ids[state.parent],
                inventories={
                    resource: ReportedInventory(total=each.total)  # noqa: B035 - there is one
                    for each in state.inventories.values()
                },
                traits=state.traits,
            )
            for state in states
        ),
    )


def _host(cell: str, name: str) -> ReportInventory:
    inventories = {"VCPU": ReportedInventory(total=1_000_000)}
    host = ReportedProvider(id=provider(name), name=name, inventories=inventories)
    return ReportInventory(cell=cell, root=host.id, providers=(host,))
