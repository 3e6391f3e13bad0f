from uuid import UUID

from engine.inventories import AggregateId, ProviderId
from nova_bridge.cloud import (
    CloudAggregate,
    CloudCell,
    ComputeService,
    NovaCloud,
    aggregates_by_host,
    cell_names,
    names_of,
    services_by_host,
    zoned,
)
from nova_bridge.selection import ComputeNode

CELL = UUID(int=7)


def a_node(number: int, name: str, service: str = "") -> ComputeNode:
    return ComputeNode(id=ProviderId(UUID(int=number)), service=service or name, name=name, cell=CELL)


def a_cloud(*nodes: ComputeNode, aggregates: tuple[CloudAggregate, ...] = ()) -> NovaCloud:
    return NovaCloud(
        nodes={each.id: each for each in nodes},
        aggregates={each.id: each for each in aggregates},
        cells={CELL: CloudCell(CELL, "cell1")},
    )


def an_aggregate(number: int, *hosts: str, **metadata: str) -> CloudAggregate:
    return CloudAggregate(id=AggregateId(UUID(int=number)), hosts=hosts, metadata=metadata)


def test_a_node_is_in_the_zone_of_an_aggregate_of_its_service_or_in_the_default_one() -> None:
    cloud = a_cloud(
        a_node(1, "H1"),
        a_node(2, "h2"),
        a_node(3, "node-3", "ironic"),
        aggregates=(
            an_aggregate(1, "h1", ssd="true"),
            an_aggregate(2, "h1", "ironic", availability_zone="z"),
        ),
    )

    zones = [each.zone for each in zoned(cloud).nodes.values()]

    assert zones == ["z", "nova", "z"]


def test_names_are_found_by_service_and_by_node_in_any_case() -> None:
    names = names_of(a_cloud(a_node(1, "N-1", "Ironic"), a_node(2, "N-2", "Ironic"), a_node(3, "h3")))

    assert names.hosts("iRONIC", "") == {"N-1", "N-2"}
    assert names.hosts("", "n-2") == {"N-2"}
    assert names.hosts("h3", "n-2") == frozenset()
    assert names.cells == {str(CELL): "cell1"}


def test_a_cell_whose_name_cannot_be_ours_is_called_by_its_id() -> None:
    cells = [
        CloudCell(UUID(int=number), name) for number, name in enumerate(("ok", "Not Ok", "two", "two", ""))
    ]

    names = [*cell_names(cells).values()]

    assert names == ["ok", *(str(UUID(int=number)) for number in (1, 2, 3, 4))]


def test_a_service_says_why_nothing_may_be_built_there() -> None:
    service = ComputeService(id=CELL, host="h", is_up=True)
    said = [
        service.unusable_because,
        ComputeService(id=CELL, host="h", is_up=False).unusable_because,
        ComputeService(id=CELL, host="h", is_up=True, is_forced_down=True).unusable_because,
        ComputeService(
            id=CELL, host="h", is_up=True, is_disabled=True, disabled_reason="new disk"
        ).unusable_because,
    ]

    assert said == [
        "",
        "its service is down",
        "its service is forced down",
        "its service is disabled: new disk",
    ]


def test_services_and_aggregates_are_found_by_their_hosts() -> None:
    service = ComputeService(id=CELL, host="H1", is_up=True)
    aggregates = (an_aggregate(2, "h1"), an_aggregate(1, "H1", "h2"))
    cloud = NovaCloud(
        services={CELL: service},
        aggregates={each.id: each for each in aggregates},
    )

    assert services_by_host(cloud) == {"h1": service}
    assert aggregates_by_host(cloud) == {"h1": (aggregates[1], aggregates[0]), "h2": (aggregates[1],)}
