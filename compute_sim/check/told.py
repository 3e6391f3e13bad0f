"""What the hosts have told of themselves, from all that was heard."""

from msgspec import structs

from bus.message import ProviderId
from bus.messages.hosts import HostsAlive, HostsReported
from bus.messages.placement import ReportInventory
from compute_sim.check.orders import HostUnderCheck
from compute_sim.check.shares import share_for
from compute_sim.check.wire import Wire


def host_named(wire: Wire, name: str) -> ProviderId | None:
    """The id of the host with this name or id, as soon as it has told of itself."""
    for heard in wire.heard:
        match heard.message:
            case HostsReported(hosts=hosts):
                for each in hosts:
                    if name in (each.name, str(each.id)):
                        return each.id
            case ReportInventory(root=root, providers=providers):
                if any(each.id == root and name in (each.name, str(root)) for each in providers):
                    return root
            case HostsAlive(hosts=alive):
                for id_ in alive:
                    if name == str(id_):
                        return id_
    return None


def names_heard(wire: Wire) -> set[str]:
    """The names or ids of the hosts that have told of themselves."""
    return {
        name
        for heard in wire.heard
        for name in (
            [each.name for each in heard.message.hosts]
            if isinstance(heard.message, HostsReported)
            else [*map(str, heard.message.hosts)]
            if isinstance(heard.message, HostsAlive)
            else []
        )
    }


def with_share(wire: Wire, host: HostUnderCheck) -> HostUnderCheck:
    """The host with a share for its flavor, from the inventories that it has reported last."""
    for heard in reversed(wire.heard):
        if isinstance(heard.message, ReportInventory) and heard.message.root == host.host:
            return structs.replace(host, share=share_for(host.flavor, heard.message))
    return host
