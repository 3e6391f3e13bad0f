"""A bare-metal node goes to requests that ask for its resource class, of projects that may use it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance
from bus.messages.cell import PlaceInCell
from bus.messages.hosts import HostsReported
from bus.workers.handling import Received, Tell
from engine.choosing.choosing import Chosen, choose
from engine.choosing.plugins import as_read
from engine.choosing.verdicts import Holds
from engine.flavors import Flavor, Image, RequestId
from engine.hosts import NODE, HostFacts
from engine.inventories import AggregateId, InventoryState, ProviderState
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec, RequestProblem, read_request
from scheduler_worker.core.hosts import reported
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.outbox import Outbox, OutboxNotes
from scheduler_worker.requests.building import Builder
from scheduler_worker.requests.reading import LastFilters, RequestReader, Search
from scheduler_worker.settings import SchedulerSettings
from tests.contracts.placement_orders import VOCABULARY, an_id, provider
from tests.plugins import standard_plugins
from tests.refusals import why_not
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_host, a_spec, a_state, vcpus

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GOLD = "CUSTOM_GOLD"
ONE = InventoryState(total=1, max_unit=1)
IMAGE = Image(source="http://images/debian")
PLUGINS = standard_plugins()


def a_node(name: str, **inventories: InventoryState) -> ProviderState:
    return a_state(name, inventories or {GOLD: ONE})


def a_cloud(*nodes: ProviderState, projects: Mapping[str, tuple[str, ...]] | None = None) -> Picture:
    """Two hypervisors, and these nodes; some of them bound."""
    virtual = [a_state("h1", vcpus(16)), a_state("h2", vcpus(16))]
    bound = projects or {}
    picture = Picture()
    picture.apply((*virtual, *nodes))
    picture.put_hosts(a_host(each.name) for each in virtual)
    picture.put_hosts(a_host(each.name, kind=NODE, projects=bound.get(each.name, ())) for each in nodes)
    return picture


def a_build(extra_specs: Mapping[str, str] | None = None, **fields: Any) -> BuildInstance:
    flavor = Flavor(name="metal", extra_specs=dict(extra_specs or {f"resources:{GOLD}": "1"}))
    return BuildInstance(request_id=RequestId(an_id("request")), flavor=flavor, **fields)


def the_spec(**fields: Any) -> InstanceSpec:
    spec = read_request(a_build(**fields), VOCABULARY)
    assert isinstance(spec, InstanceSpec), spec
    return spec


def found(picture: Picture, spec: InstanceSpec) -> Chosen | NoValidHost:
    (one,) = choose(picture, [spec], PLUGINS, salt=0)
    return one


def chosen(picture: Picture, spec: InstanceSpec) -> Chosen:
    one = found(picture, spec)
    assert isinstance(one, Chosen), one
    return one


def refusal(picture: Picture, spec: InstanceSpec) -> NoValidHost:
    one = found(picture, spec)
    assert isinstance(one, NoValidHost), one
    return one


def reasons(picture: Picture, spec: InstanceSpec) -> dict[str, str]:
    return {miss.host: miss.reason for miss in why_not(picture, spec, PLUGINS)}


# Requests that get a node


def test_a_request_for_a_nodes_class_gets_the_node_and_its_cell_is_told_its_kind() -> None:
    one = chosen(a_cloud(a_node("n1"), a_node("n2")), the_spec())

    assert {one.choice.name, *(each.name for each in one.alternates)} == {"n1", "n2"}
    assert {each.kind for each in (one.choice, *one.alternates)} == {NODE}


def test_any_other_request_gets_a_hypervisor_whose_kind_is_none() -> None:
    one = chosen(a_cloud(a_node("n1")), a_spec())

    assert one.choice.name in ("h1", "h2")
    assert [each.kind for each in (one.choice, *one.alternates)] == ["", ""]


def test_a_node_is_not_for_a_request_that_asks_for_another_class() -> None:
    picture = a_cloud(a_node("n1"))
    told = refusal(picture, a_spec(vcpu=17))

    assert told.steps[0].step == "bare metal"
    assert told.steps[0].removed == 1
    assert told.steps[0].example == f"n1: is a bare-metal node, only for requests that ask for {GOLD}"
    assert {miss.host for miss in told.nearest} == {"h1", "h2", "n1"}


def test_a_node_without_a_class_says_so() -> None:
    picture = a_cloud(a_state("n1", {}))

    assert reasons(picture, the_spec())["n1"] == "bare metal: is a bare-metal node without a resource class"


def test_a_node_whose_memory_would_fit_is_still_no_hypervisor() -> None:
    """A reporter also reports the node's hardware: only a request for some of it gets the node."""
    picture = a_cloud(a_state("n1", {GOLD: ONE, "MEMORY_MB": InventoryState(total=4096, max_unit=4096)}))

    assert refusal(picture, a_spec(vcpu=17)).steps[0].step == "bare metal"


def test_a_request_for_what_is_shared_with_a_node_does_not_land_on_the_node() -> None:
    aggregate = AggregateId(UUID(int=77))
    pool = a_state(
        "pool",
        {"DISK_GB": InventoryState(total=1000, max_unit=1000)},
        traits=("MISC_SHARES_VIA_AGGREGATE",),
        aggregates=(aggregate,),
    )
    node = a_state("n1", {GOLD: ONE}, aggregates=(aggregate,))
    picture = Picture()
    picture.apply((pool, node))
    picture.put_hosts([a_host("n1", kind=NODE)])
    shared_alone = InstanceSpec(amounts=(("DISK_GB", 10),))

    assert refusal(picture, shared_alone).steps[0].step == "bare metal"
    both = InstanceSpec(amounts=((GOLD, 1), ("DISK_GB", 10)))
    assert chosen(picture, both).choice.name == "n1"


def test_a_node_that_is_taken_or_reserved_is_full() -> None:
    picture = a_cloud(a_node("n1", **{GOLD: InventoryState(total=1, reserved=1, max_unit=1)}))

    assert reasons(picture, the_spec())["n1"] == f"capacity: {GOLD} asked 1, free 0 of 0"


# What only nodes read


def test_a_request_with_an_image_gets_no_hypervisor_even_if_that_has_the_class() -> None:
    picture = Picture()
    picture.apply((a_state("h1", {GOLD: InventoryState(total=9, max_unit=9)}), a_node("n1")))
    picture.put_hosts((a_host("h1"), a_host("n1", kind=NODE)))

    one = chosen(picture, the_spec(image=IMAGE))

    assert (one.choice.name, one.alternates) == ("n1", ())
    assert reasons(picture, the_spec(image=IMAGE))["h1"].startswith("bare metal: is no bare-metal node")
    assert {chosen(picture, the_spec()).choice.name} <= {"h1", "n1"}


def test_an_image_whose_flavor_asks_for_more_than_classes_of_nodes_is_one_for_a_hypervisor() -> None:
    virtual, metal = (
        read_request(a_build(amounts, image=IMAGE), VOCABULARY)
        for amounts in ({"resources:VCPU": "1", f"resources:{GOLD}": "1"}, {f"resources:{GOLD}": "1"})
    )

    assert isinstance(virtual, InstanceSpec)
    assert isinstance(metal, InstanceSpec)
    assert (virtual.is_for_nodes, virtual.image) == (False, IMAGE.source)
    assert (metal.is_for_nodes, metal.image) == (True, "")


@pytest.mark.parametrize(
    "config_drive",
    ["{", "{}x", '{"meta_data": []}', '{"user_data": {}}', '{"vendor": {}}', "{" * 3000, '{"a":' * 9000],
    ids=["cut off", "two", "a list", "an object", "unknown", "open", "deep"],
)
def test_a_config_drive_that_begins_like_parts_and_is_none_is_refused(config_drive: str) -> None:
    rejected = read_request(a_build({f"resources:{GOLD}": "1"}, config_drive=config_drive), VOCABULARY)

    assert isinstance(rejected, RequestProblem)
    assert rejected.field == "config_drive"
    assert len(str(rejected.value)) <= 200
    assert "no JSON object of meta_data, user_data and network_data" in rejected.reason


def test_a_config_drive_of_parts_is_accepted() -> None:
    drive = '{"meta_data": {"a": 1}, "user_data": "#!/bin/sh", "network_data": {"links": []}}'

    assert isinstance(
        read_request(a_build({f"resources:{GOLD}": "1"}, config_drive=drive), VOCABULARY), InstanceSpec
    )


def test_ports_that_no_host_of_the_request_can_read_are_refused() -> None:
    rejected = read_request(a_build({"resources:VCPU": "1"}, ports=("p1", "p2")), VOCABULARY)

    assert isinstance(rejected, RequestProblem)
    assert (rejected.field, str(rejected.value)) == ("ports", "p1, p2")
    assert "only bare-metal nodes read it" in rejected.reason


@pytest.mark.parametrize(("resource", "is_for_nodes"), [("VCPU", False), ("CUSTOM_GOLD", True)])
def test_a_config_drive_is_for_the_host_that_its_flavor_asks_for(
    resource: str,
    is_for_nodes: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    spec = read_request(a_build({f"resources:{resource}": "1"}, config_drive="http://drive"), VOCABULARY)

    assert isinstance(spec, InstanceSpec)
    assert spec.is_for_nodes == is_for_nodes


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"image": Image(source="")}, "image.source"),
        ({"ports": ("p1",), "count": 2}, "ports"),
        ({"ports": ("p1", "..")}, "ports[1]"),
        ({"ports": ("",)}, "ports[0]"),
    ],
)
def test_what_no_node_could_do_is_refused(fields: dict[str, Any], field: str) -> None:
    rejected = read_request(a_build(**fields), VOCABULARY)

    assert isinstance(rejected, RequestProblem)
    assert rejected.field == field


# Projects


def test_a_node_is_for_its_owner_and_its_lessee_alone() -> None:
    picture = a_cloud(a_node("n1"), projects={"n1": ("owner", "lessee")})

    for project in ("owner", "lessee"):
        assert chosen(picture, the_spec(project=project)).choice.name == "n1"
    for project in ("shop", ""):
        steps = refusal(picture, the_spec(project=project)).steps
        assert [(step.step, step.removed) for step in steps] == [("projects", 1), ("capacity", 2)]


def test_the_reason_names_the_project_that_a_node_belongs_to() -> None:
    picture = a_cloud(a_node("n1"), a_node("n2"), projects={"n1": ("owner",), "n2": ("owner", "lessee")})

    told = reasons(picture, the_spec(project="shop"))

    assert told["n1"] == "projects: this node belongs to project owner, the request to shop"
    assert told["n2"] == "projects: this node belongs to projects owner and lessee, the request to shop"
    (plain,) = [miss for miss in refusal(picture, a_spec(vcpu=17)).nearest if miss.host == "n1"]
    assert "belongs" not in plain.reason


def test_a_node_that_is_bound_anew_is_for_its_new_project() -> None:
    picture = a_cloud(a_node("n1"), projects={"n1": ("owner",)})
    picture.put_hosts([a_host("n1", kind=NODE, projects=("shop",), sequence=2)])
    assert chosen(picture, the_spec(project="shop")).choice.name == "n1"

    picture.put_hosts([a_host("n1", kind=NODE, sequence=3)])
    assert chosen(picture, the_spec(project="anybody")).choice.name == "n1"


def test_requests_that_can_get_no_node_are_one_spec_whatever_their_projects() -> None:
    picture = a_cloud(a_node("n1"))
    virtual = {"resources:VCPU": "1"}
    builds = [a_build(virtual, project=project) for project in ("shop", "bank")]
    specs = [read_request(each, VOCABULARY) for each in builds]
    assert not any(isinstance(each, RequestProblem) for each in specs)

    assert len({as_read(each, picture) for each in specs if isinstance(each, InstanceSpec)}) == 1
    ours, theirs = (as_read(the_spec(project=project), picture) for project in ("shop", "bank"))
    assert ours != theirs


def test_columns_that_grow_keep_what_nodes_are() -> None:
    picture = a_cloud(a_node("n1"), projects={"n1": ("owner",)})
    picture.apply([a_state(f"more{number}", vcpus(1)) for number in range(200)])

    assert chosen(picture, the_spec(project="owner")).choice.kind == NODE
    assert reasons(picture, the_spec(project="shop"))["n1"].startswith("projects: ")


def test_a_row_that_was_a_nodes_is_nothing_of_the_kind_for_its_next_host() -> None:
    picture = a_cloud(a_node("n1"), projects={"n1": ("owner",)})
    picture.remove_hosts([provider("n1")])
    picture.prune([a_node("n1").internal])
    picture.apply([a_state("h3", vcpus(32))])
    picture.put_hosts([a_host("h3")])

    one = chosen(picture, a_spec(vcpu=32))

    assert (one.choice.name, one.choice.kind) == ("h3", "")


# Deadlines


class ClaimsAll:
    """A claimer whose claims are all granted."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    async def find_hosts(self, searches: Sequence[Search]) -> None:
        for one in searches:
            where = chosen(self.picture, one.spec)
            one.outcome = Holds(where.cell, 1, where.choice, where.alternates)


async def ends_after_s(build: BuildInstance, picture: Picture, settings: SchedulerSettings) -> float:
    """How long after its acceptance the cell is told that a request ends."""
    store = MemorySchedulerStore()
    reader = RequestReader(VOCABULARY, settings.horizon, PLUGINS)
    builder = Builder(
        store,
        ClaimsAll(picture),  # type: ignore[arg-type]
        reader,
        lambda: NOON,
        settings,
        begin_waits=list,  # type: ignore[arg-type]
        last_filters=LastFilters(),
    )
    outbox = Outbox(store, OutboxNotes(store, timedelta(seconds=5), lambda: NOON))
    ask = Received(message=build, id="1", trace="", sender="", reply_to="", attempts=0)
    async with outbox.transaction() as transaction:
        said = await builder.on_builds([ask], transaction)
    (order,) = [
        each.message for each in said if isinstance(each, Tell) and isinstance(each.message, PlaceInCell)
    ]
    return (order.ends_by - NOON).total_seconds()


@pytest.mark.asyncio
async def test_a_request_that_names_no_deadline_has_that_of_the_kind_of_host_that_is_chosen() -> None:
    picture, settings = a_cloud(a_node("n1")), SchedulerSettings()
    virtual = a_build({"resources:VCPU": "1"})

    assert await ends_after_s(virtual, picture, settings) == 600
    assert await ends_after_s(a_build(), picture, settings) == 7200
    assert await ends_after_s(structs.replace(virtual, deadline_s=9), picture, settings) == 9
    assert await ends_after_s(a_build(deadline_s=9), picture, settings) == 9


@pytest.mark.asyncio
async def test_a_hypervisor_with_a_node_as_alternate_gives_a_nodes_time() -> None:
    picture = Picture()
    picture.apply((a_state("h1", {GOLD: InventoryState(total=9, max_unit=9)}), a_node("n1")))
    picture.put_hosts((a_host("h1"), a_host("n1", kind=NODE)))

    assert await ends_after_s(a_build(), picture, SchedulerSettings(node_request_timeout_s=5000)) == 5000


def test_a_nodes_request_may_not_have_less_time_than_others() -> None:
    with pytest.raises(ValueError, match="node_request_timeout_s is 60, must be at least request_timeout_s"):
        SchedulerSettings(node_request_timeout_s=60)


# The registry


def test_the_registry_knows_what_a_node_says_of_itself_and_each_by_its_own_number() -> None:
    facts = HostFacts(id=provider("n1"), name="n1", kind=NODE, projects=("owner",), epoch=3, sequence=7)
    report = HostsReported(cell="c1", hosts=(facts,), epoch=1, sequence=1)

    host = reported(None, facts, report, NOON)

    assert host is not None
    assert (host.kind, host.projects) == (NODE, ("owner",))
    assert (host.report_epoch, host.report_sequence) == (3, 7)
    older = structs.replace(facts, projects=(), sequence=6)
    assert reported(host, older, structs.replace(report, epoch=9), NOON) == host
    newer = structs.replace(facts, projects=(), epoch=4, sequence=1)
    assert (free := reported(host, newer, report, NOON)) is not None
    assert free.projects == ()


def test_a_node_goes_to_another_cell_by_the_word_of_a_sender_above_cells_alone() -> None:
    facts = HostFacts(id=provider("n1"), name="n1", kind=NODE, epoch=3, sequence=7)
    host = reported(None, facts, HostsReported(cell="c1", hosts=(facts,)), NOON)
    later = structs.replace(facts, sequence=8)
    there = HostsReported(cell="c2", hosts=(later,))

    moved = reported(host, later, there, NOON)

    assert moved is not None
    assert moved.cell == "c2"
    assert reported(host, later, there, NOON, speaks_for="c2") is None
    # A word from before it went there.
    assert reported(moved, facts, HostsReported(cell="c1", hosts=(facts,)), NOON) is moved
    virtual = structs.replace(later, kind="")
    assert reported(host, virtual, there, NOON) is None


def test_a_node_is_up_though_its_daemon_beats_for_the_cell_that_it_was_in() -> None:
    times = [NOON]
    registry = HostRegistry(Picture(), timedelta(seconds=10), lambda: times[-1])
    facts = HostFacts(id=provider("n1"), name="n1", kind=NODE, epoch=1, sequence=1)
    virtual = HostFacts(id=provider("h1"), name="h1")
    registry.hear_facts(HostsReported(cell="c2", hosts=(facts, virtual)))
    times.append(NOON + timedelta(seconds=9))
    registry.hear_beats("c1", [facts.id, virtual.id])
    times.append(NOON + timedelta(seconds=12))
    registry.look()

    assert (node := registry.get(facts.id)) is not None
    assert (host := registry.get(virtual.id)) is not None
    assert (node.up, host.up) == (True, False)
    times.append(NOON + timedelta(seconds=30))
    registry.hear_beats("c1", [facts.id], speaks_for="c1")
    registry.look()
    assert not (registry.get(facts.id) or node).up
