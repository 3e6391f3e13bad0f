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


def test_a_list_replaces_what_is_known_of_the_host_and_one_instance_is_added() -> None:
    known = InstancesByService()
    known.updated({"host_name": "Host", "instance_info": a_list(an_instance(ONE))})
    known.updated({"host_name": "host", "instance_info": an_instance(TWO, "building")})

    assert known.of("HOST").busy == {ONE: False, TWO: True}
    assert (known.of("host").count, known.of("host").io_ops) == (2, 1)
    assert known.count((ONE, TWO, UUID(int=9))) == {"host": 2}

    known.updated({"host_name": "host", "instance_info": a_list()})
    assert (known.of("host").count, known.count((ONE, TWO))) == (0, {})


def test_a_deleted_instance_goes_and_a_list_of_ids_says_which_are_left() -> None:
    known = InstancesByService()
    known.updated({"host_name": "h", "instance_info": a_list(an_instance(ONE, "building"))})
    known.synced({"host_name": "h", "instance_uuids": [str(ONE), str(TWO)]})
    assert known.of("h").busy == {ONE: True, TWO: False}

    known.deleted({"host_name": "h", "instance_uuid": str(ONE)})
    assert known.of("h").busy == {TWO: False}
    service = known.synced({"host_name": "h", "instance_uuids": []})
    assert (service, known.of("h").count) == ("h", 0)


def test_an_instance_that_moves_is_on_each_service_that_has_it() -> None:
    known = InstancesByService()
    known.synced({"host_name": "from", "instance_uuids": [str(ONE), str(TWO)]})
    known.updated({"host_name": "to", "instance_info": an_instance(ONE)})
    assert known.count((ONE,)) == {"from": 1, "to": 1}

    known.deleted({"host_name": "from", "instance_uuid": str(ONE)})
    known.deleted({"host_name": "from", "instance_uuid": str(ONE)})
    assert known.count((ONE, TWO)) == {"from": 1, "to": 1}


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
