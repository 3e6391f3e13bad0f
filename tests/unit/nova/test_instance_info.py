"""What computes tell all schedulers about their instances."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from engine.picture.picture import Picture
from nova_bridge import selection
from nova_bridge.envelope import RefusedError, RpcRequest, RpcVersion
from nova_bridge.hosts import NovaHosts
from nova_bridge.selection import InstancesByService
from nova_bridge.serving import NovaCasts
from tests.unit.nova.recorded import an_object

ONE, TWO = UUID(int=1), UUID(int=2)


def an_instance(id_: UUID, vm_state: str = "active", task_state: str | None = None) -> dict[str, object]:
    return an_object("Instance", "2.8", uuid=str(id_), vm_state=vm_state, task_state=task_state)


def a_list(*instances: dict[str, object]) -> dict[str, object]:
    return an_object("InstanceList", "2.6", objects=[*instances])


Told = tuple[str, dict[str, object], dict[str, object]]
# What is told about a host, and what is known of it then, by its fields or as counts of the instances by hosts.
CASTS: dict[str, list[Told]] = {
    "a list replaces what is known of the host and one instance is added": [
        ("updated", {"host_name": "Host", "instance_info": a_list(an_instance(ONE))}, {"busy": {ONE: False}}),
        (
            "updated",
            {"host_name": "host", "instance_info": an_instance(TWO, "building")},
            {"busy": {ONE: False, TWO: True}, "count": 2, "io_ops": 1, "by host": {"host": 2}},
        ),
        (
            "updated",
            {"host_name": "host", "instance_info": a_list()},
            {"busy": {}, "count": 0, "by host": {}},
        ),
    ],
    "a deleted instance goes and a list of ids says which are left": [
        (
            "updated",
            {"host_name": "h", "instance_info": a_list(an_instance(ONE, "building"))},
            {"busy": {ONE: True}},
        ),
        (
            "synced",
            {"host_name": "h", "instance_uuids": [str(ONE), str(TWO)]},
            {"busy": {ONE: True, TWO: False}},
        ),
        ("deleted", {"host_name": "h", "instance_uuid": str(ONE)}, {"busy": {TWO: False}}),
        ("synced", {"host_name": "h", "instance_uuids": []}, {"count": 0}),
    ],
    "an instance that moves is on each service that has it": [
        ("synced", {"host_name": "from", "instance_uuids": [str(ONE), str(TWO)]}, {"count": 2}),
        (
            "updated",
            {"host_name": "to", "instance_info": an_instance(ONE)},
            {"by host": {"from": 2, "to": 1}},
        ),
        ("deleted", {"host_name": "from", "instance_uuid": str(ONE)}, {"busy": {TWO: False}}),
        ("deleted", {"host_name": "from", "instance_uuid": str(ONE)}, {"by host": {"from": 1, "to": 1}}),
    ],
}


@pytest.mark.parametrize("case", CASTS)
def test_what_computes_tell_is_known_of_their_hosts(case: str) -> None:
    known = InstancesByService()
    for cast, args, says in CASTS[case]:
        getattr(known, cast)(args)
        of_host = known.of(str(args["host_name"]).upper())
        facts = {
            "busy": of_host.busy,
            "count": of_host.count,
            "io_ops": of_host.io_ops,
            "by host": known.count((ONE, TWO, UUID(int=9))),
        }
        assert {name: facts[name] for name in says} == says


class Watched(dict[UUID, tuple[str, ...]]):
    """Counts the instances that are looked up, written and forgotten, and those that are gone through."""

    touched = 0

    def __setitem__(self, key: UUID, value: tuple[str, ...]) -> None:
        self.touched += 1
        super().__setitem__(key, value)

    def __iter__(self) -> Iterator[UUID]:
        self.touched += len(self)
        return super().__iter__()


def test_a_cast_and_a_question_cost_what_they_are_about_and_not_what_the_cloud_has() -> None:
    known = InstancesByService()
    for host in range(50):
        ids = [str(UUID(int=1000 * host + number)) for number in range(1, 101)]
        known.synced({"host_name": f"h{host}", "instance_uuids": ids})
    index = known._services_of = Watched(known._services_of)  # noqa: SLF001

    known.updated({"host_name": "h7", "instance_info": an_instance(UUID(int=999_999))})
    assert known.count((UUID(int=999_999), UUID(int=3001))) == {"h7": 1, "h3": 1}
    known.deleted({"host_name": "h7", "instance_uuid": str(UUID(int=7001))})
    assert known.count((UUID(int=7001),)) == {}

    assert index.touched == 1


def test_invented_services_and_instances_are_refused_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "SERVICES_MAX", 2)
    monkeypatch.setattr(selection, "INSTANCES_MAX", 2)
    known = InstancesByService()
    for name in ("a", "b"):
        known.synced({"host_name": name, "instance_uuids": [str(ONE)]})

    with pytest.raises(RefusedError, match="host_name is 'c': 2 services are known already"):
        known.synced({"host_name": "c", "instance_uuids": []})
    with pytest.raises(RefusedError, match="host_name is 'b': it has 3 instances, at most 2 are kept"):
        known.synced({"host_name": "b", "instance_uuids": [str(UUID(int=number)) for number in range(3)]})
    known.synced({"host_name": "b", "instance_uuids": [str(ONE), str(TWO)]})
    with pytest.raises(RefusedError, match="host_name is 'b': it has 3 instances"):
        known.updated({"host_name": "b", "instance_info": an_instance(UUID(int=3))})
    assert (known.of("b").count, known.count((UUID(int=3),))) == (2, {})


def test_each_cast_is_taken_and_one_about_aggregates_has_nova_read_again() -> None:
    hosts, looks = NovaHosts(Picture()), list[str]()
    casts = NovaCasts(hosts, lambda: looks.append("again"))
    for method, args, left, looked in (
        ("update_instance_info", {"host_name": "h", "instance_info": a_list(an_instance(ONE))}, {ONE}, 0),
        ("sync_instance_info", {"host_name": "h", "instance_uuids": [str(ONE), str(TWO)]}, {ONE, TWO}, 0),
        ("delete_instance_info", {"host_name": "h", "instance_uuid": str(ONE)}, {TWO}, 0),
        ("update_aggregates", {}, {TWO}, 1),
        ("delete_aggregate", {}, {TWO}, 2),
    ):
        assert casts.know(method)
        casts.take(RpcRequest(method, RpcVersion(4, 5), args))
        assert ({*hosts.instances.of("h").busy}, len(looks)) == (left, looked), method
