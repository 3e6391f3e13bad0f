"""Takes what Nova tells all its schedulers by casts: the instances of each compute, and that aggregates have changed."""

from collections.abc import Callable, Mapping

from scheduler_worker.nova.instance_info import InstancesByService, deleted, synced, updated
from scheduler_worker.nova.oslo_envelope import RpcRequest
from scheduler_worker.nova_worker.hosts import NovaHosts

_Update = Callable[[InstancesByService, Mapping[str, object]], tuple[InstancesByService, str]]

_UPDATES: Mapping[str, _Update] = {
    "update_instance_info": updated,
    "delete_instance_info": deleted,
    "sync_instance_info": synced,
}
# All of Nova's aggregates are read from Nova: these casts only say that something changed.
_AGGREGATES = frozenset({"update_aggregates", "delete_aggregate"})


class NovaCasts:
    """`look_again` is called when Nova says that aggregates have changed."""

    def __init__(self, hosts: NovaHosts, look_again: Callable[[], None]) -> None:
        self._hosts = hosts
        self._look_again = look_again

    @staticmethod
    def know(method: str) -> bool:
        return method in _UPDATES or method in _AGGREGATES

    def take(self, request: RpcRequest) -> None:
        """Take what a cast that is known tells. Raises RefusedError if it cannot be read."""
        if request.method in _AGGREGATES:
            self._look_again()
            return
        known, service = _UPDATES[request.method](self._hosts.instances, request.args)
        self._hosts.tell_instances(known, service)
