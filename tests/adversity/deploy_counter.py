"""Counts how often the nodes of a simulated Ironic became active."""

from laboratory.ironic import SimulatedIronic


class DeployCounter:
    """`look` is called at each notification, and whenever the number is read. For the notification by which a deploy ends may be
    lost: the deploy would be counted at the next one, which may be that of a later order.

    The start of each rebuild and of each delete is told, so no node becomes active twice between two looks.
    """

    def __init__(self, ironic: SimulatedIronic) -> None:
        self._ironic = ironic
        self._active: frozenset[str] = frozenset()
        self._deployed = 0

    def look(self) -> None:
        nodes = self._ironic.nodes.values()
        active = frozenset(
            node.uuid for node in nodes if node.instance_uuid and node.provision_state == "active"
        )
        self._deployed += len(active - self._active)
        self._active = active

    @property
    def deployed(self) -> int:
        self.look()
        return self._deployed
