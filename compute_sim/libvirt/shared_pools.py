"""The storage pools and networks that the hosts of a compute share: the compute reports each of them once."""

from collections.abc import Iterable, Sequence

from bus.errors import Unavailable
from compute_sim.core.attempts import WELL, Condition
from compute_sim.core.pools import Pool, tree_of_pool
from compute_sim.core.tree import ProviderTree
from compute_sim.libvirt.views import HostView


class NotShared(Unavailable):
    """Hosts do not see the same pool by one name; the text names them."""


class SharedByHosts:
    """A pool that is reported like a host (`Reported`), as large as the first host sees it now."""

    def __init__(self, pool: Pool, views: Sequence[HostView]) -> None:
        self.root = tree_of_pool(pool).root
        self._pool = pool
        self._views = views

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:  # noqa: ARG002 - as the hosts see it
        seen = next((pool for pool, _ in _seen(self._views) if pool.name == self._pool.name), self._pool)
        return tree_of_pool(seen)

    def condition(self, at_s: float) -> Condition:  # noqa: ARG002 - it is there as long as its compute
        return WELL


def shared_pools(views: Sequence[HostView]) -> list[SharedByHosts]:
    """The pools that these hosts share, each once. Raises `NotShared` if hosts see pools of different sizes by one name."""
    found: dict[str, tuple[Pool, str]] = {}
    for pool, host in _seen(views):
        first, other = found.setdefault(pool.name, (pool, host))
        if first.total != pool.total:
            raise NotShared(
                f"{pool.name} has {first.total} {pool.resource} on host {other} and {pool.total} on host {host}, so it is not one pool: "
                "name the hosts that share it, as NAME@HOSTS"
            )
    return [SharedByHosts(pool, views) for pool, _ in found.values()]


def _seen(views: Iterable[HostView]) -> Iterable[tuple[Pool, str]]:
    for view in views:
        for each in view.layout.shared:
            if each.pool is not None:
                yield each.pool, view.host.name
