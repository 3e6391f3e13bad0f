"""Which instances each compute service has, as Nova's computes tell all schedulers by casts.

A compute tells of all its instances when it starts, of each change, and now and then of all ids. Names of services are in lower
case here.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from uuid import UUID

from msgspec import Struct

from scheduler_worker.nova.json_fields import Fields, id_in
from scheduler_worker.nova.objects import read_object
from scheduler_worker.nova.refusals import RefusedError

# Work on an instance that loads its host: Nova's own list of states of an instance and of its tasks.
_BUSY_STATES = frozenset({"building"})
_BUSY_TASKS = frozenset(
    {
        *("resize_migrating", "rebuilding", "resize_prep", "image_snapshot", "image_backup"),
        *("rescuing", "unshelving"),
    }
)
# A user of Nova's broker may invent names and ids. A cloud has fewer services, and a host fewer instances.
SERVICES_MAX, INSTANCES_MAX = 50_000, 10_000


class ServiceInstances(Struct, frozen=True):
    """The instances of one service, each with whether work on it loads the host."""

    busy: Mapping[UUID, bool] = {}

    @property
    def count(self) -> int:
        return len(self.busy)

    @property
    def io_ops(self) -> int:
        return sum(self.busy.values())


class InstancesByService(Struct, frozen=True, dict=True):
    services: Mapping[str, ServiceInstances] = {}

    @cached_property
    def _service_of(self) -> Mapping[UUID, str]:
        return {instance: name for name, each in self.services.items() for instance in each.busy}

    def of(self, service: str) -> ServiceInstances:
        return self.services.get(service.lower(), ServiceInstances())

    def services_of(self, instances: Iterable[UUID]) -> frozenset[str]:
        """The services that have one of these instances."""
        found = (self._service_of.get(each) for each in instances)
        return frozenset(name for name in found if name is not None)

    def count(self, service: str, among: Iterable[UUID]) -> int:
        return len(frozenset(among) & self.of(service).busy.keys())


def updated(known: InstancesByService, args: Mapping[str, object]) -> tuple[InstancesByService, str]:
    """After `update_instance_info`, which tells of one instance, or of all that a service has. Returns the service, too."""
    fields = Fields(args, "")
    service = fields.text("host_name").lower()
    told = fields.value("instance_info")
    name = fields.object("instance_info").text("nova_object.name")
    if name == "InstanceList":
        items = read_object(told, "instance_info", name).list("objects")
        busy = dict(_instance(item, f"instance_info.objects[{number}]") for number, item in enumerate(items))
    else:
        one, is_busy = _instance(told, "instance_info")
        busy = {**known.of(service).busy, one: is_busy}
    return _with(known, service, busy), service


def deleted(known: InstancesByService, args: Mapping[str, object]) -> tuple[InstancesByService, str]:
    """After `delete_instance_info`."""
    fields = Fields(args, "")
    service, gone = fields.text("host_name").lower(), fields.id("instance_uuid")
    busy = {id_: is_busy for id_, is_busy in known.of(service).busy.items() if id_ != gone}
    return _with(known, service, busy), service


def synced(known: InstancesByService, args: Mapping[str, object]) -> tuple[InstancesByService, str]:
    """After `sync_instance_info`, which tells the ids of all that a service has."""
    fields = Fields(args, "")
    service = fields.text("host_name").lower()
    before = known.of(service).busy
    ids = [id_in(each, "instance_uuids") for each in fields.texts("instance_uuids")]
    return _with(known, service, {id_: before.get(id_, False) for id_ in ids}), service


def _with(known: InstancesByService, service: str, busy: Mapping[UUID, bool]) -> InstancesByService:
    if service not in known.services and len(known.services) >= SERVICES_MAX:
        raise RefusedError("host_name", service, f"{SERVICES_MAX} services are known already")
    if len(busy) > INSTANCES_MAX:
        raise RefusedError(
            "host_name", service, f"it has {len(busy)} instances, at most {INSTANCES_MAX} are kept"
        )
    return InstancesByService({**known.services, service: ServiceInstances(busy)})


def _instance(value: object, path: str) -> tuple[UUID, bool]:
    instance = read_object(value, path, "Instance")
    is_busy = instance.text("vm_state", "") in _BUSY_STATES or instance.text("task_state", "") in _BUSY_TASKS
    return instance.id("uuid"), is_busy
