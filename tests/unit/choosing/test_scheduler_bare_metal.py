"""A bare-metal node goes to requests that ask for its resource class, of projects that may use it."""

import itertools
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from bus.messages.build import BuildInstance
from engine.flavors import Flavor, Image, RequestId
from engine.hosts import NODE
from engine.inventories import AggregateId, InventoryState, ProviderState
from engine.picture.picture import Picture
from engine.requests import InstanceSpec, RequestProblem, read_request
from scheduler_worker.settings import SchedulerSettings
from tests.contracts.placement_orders import VOCABULARY, an_id
from tests.narrowing import must_be
from tests.plugins import standard_plugins
from tests.refusals import why_not
from tests.unit.choosing.scheduler_worlds import a_host, a_spec, a_state, vcpus
from tests.unit.choosing.test_scheduler_choosing import chosen, names, refusal

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
    return must_be(InstanceSpec, read_request(a_build(**fields), VOCABULARY))


def reasons(picture: Picture, spec: InstanceSpec) -> dict[str, str]:
    return {miss.host: miss.reason for miss in why_not(picture, spec, PLUGINS)}


# Requests that get a node


def test_a_request_for_a_nodes_class_gets_the_node_and_its_cell_is_told_its_kind() -> None:
    (one,) = chosen(a_cloud(a_node("n1"), a_node("n2")), the_spec())

    assert {one.choice.name, *(each.name for each in one.alternates)} == {"n1", "n2"}
    assert {each.kind for each in (one.choice, *one.alternates)} == {NODE}


def test_a_node_is_not_for_a_request_that_asks_for_another_class() -> None:
    picture = a_cloud(a_node("n1"))
    told = refusal(picture, a_spec(vcpu=17))

    assert told.steps[0].step == "bare metal"
    assert told.steps[0].removed == 1
    assert told.steps[0].example == f"n1: is a bare-metal node, only for requests that ask for {GOLD}"
    assert {miss.host for miss in told.nearest} == {"h1", "h2", "n1"}


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
    assert names(chosen(picture, both)) == ["n1"]


# What only nodes read


def test_a_request_with_an_image_gets_no_hypervisor_even_if_that_has_the_class() -> None:
    picture = Picture()
    picture.apply((a_state("h1", {GOLD: InventoryState(total=9, max_unit=9)}), a_node("n1")))
    picture.put_hosts((a_host("h1"), a_host("n1", kind=NODE)))

    (one,) = chosen(picture, the_spec(image=IMAGE))

    assert (one.choice.name, one.alternates) == ("n1", ())
    assert reasons(picture, the_spec(image=IMAGE))["h1"].startswith("bare metal: is no bare-metal node")
    assert {*names(chosen(picture, the_spec()))} <= {"h1", "n1"}


def test_an_image_whose_flavor_asks_for_more_than_classes_of_nodes_is_one_for_a_hypervisor() -> None:
    virtual, metal = (
        read_request(a_build(amounts, image=IMAGE), VOCABULARY)
        for amounts in ({"resources:VCPU": "1", f"resources:{GOLD}": "1"}, {f"resources:{GOLD}": "1"})
    )

    assert isinstance(virtual, InstanceSpec)
    assert isinstance(metal, InstanceSpec)
    assert (virtual.is_for_nodes, virtual.image) == (False, IMAGE.source)
    assert (metal.is_for_nodes, metal.image) == (True, "")


BROKEN = ("{", "{}x", '{"meta_data": []}', '{"user_data": {}}', '{"vendor": {}}', "{" * 3000, '{"a":' * 9000)
NO_PARTS = "no JSON object of meta_data, user_data and network_data"


@pytest.mark.parametrize(
    ("build", "field", "why"),
    [
        *[(a_build(config_drive=each), "config_drive", NO_PARTS) for each in BROKEN],
        (a_build({"resources:VCPU": "1"}, ports=("p1", "p2")), "ports", "only bare-metal nodes read it"),
        (a_build(image=Image(source="")), "image.source", ""),
        (a_build(ports=("p1",), count=2), "ports", ""),
        (a_build(ports=("p1", "..")), "ports[1]", ""),
        (a_build(ports=("",)), "ports[0]", ""),
    ],
    ids=itertools.count(),
)
def test_what_no_host_of_the_request_could_read_is_refused(
    build: BuildInstance, field: str, why: str
) -> None:
    rejected = must_be(RequestProblem, read_request(build, VOCABULARY))
    assert (rejected.field, why in rejected.reason, len(str(rejected.value)) <= 200) == (field, True, True)


# Projects


def test_a_node_is_for_its_owner_and_its_lessee_alone() -> None:
    picture = a_cloud(a_node("n1"), projects={"n1": ("owner", "lessee")})

    for project in ("owner", "lessee"):
        assert names(chosen(picture, the_spec(project=project))) == ["n1"]
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
    assert names(chosen(picture, the_spec(project="shop"))) == ["n1"]

    picture.put_hosts([a_host("n1", kind=NODE, sequence=3)])
    assert names(chosen(picture, the_spec(project="anybody"))) == ["n1"]


# Deadlines


def test_a_nodes_request_may_not_have_less_time_than_others() -> None:
    with pytest.raises(ValueError, match="node_request_timeout_s is 60, must be at least request_timeout_s"):
        SchedulerSettings(node_request_timeout_s=60)
