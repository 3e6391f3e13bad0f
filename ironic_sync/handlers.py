"""Orders to deploy, undeploy and rebuild nodes: any daemon takes them and writes them on the node's row, and the node's owner does
the work (deploying.py). The rules live in core/orders.py.

An order is acknowledged when it is written. What is answered at once is said before that, so it is said again if the order
comes again.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from bus.handling import Handlers, Received, Said, Tell
from bus.message import ProviderId  # noqa: TC001 - like every other import
from bus.messages.cell import (
    DeployInstance,
    InstanceRedeployed,
    RedeployInstance,
    SpawnFailed,
    UndeployInstance,
)
from ironic_sync.applying import Change, NodeKeeper
from ironic_sync.core.orders import Order, after_order
from ironic_sync.core.rows import Answer, NodeRow

log = logging.getLogger(__name__)


class OrderBook:
    """What a worker takes for its store. Each change of the keeper commits by itself, before anything is said."""

    def __init__(self, keeper: NodeKeeper) -> None:
        self._keeper = keeper

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[NodeKeeper]:
        yield self._keeper


def handlers(clock: Callable[[], datetime]) -> Handlers:
    async def on_orders(orders: Sequence[Received[Order]], keeper: NodeKeeper) -> list[Said]:
        now, can_deploy = clock(), keeper.terms.can_read
        of_nodes: dict[ProviderId, list[int]] = {}
        for number, each in enumerate(orders):
            of_nodes.setdefault(each.message.host, []).append(number)
        answers: dict[int, Answer | None] = {}

        def change_by(numbers: Sequence[int]) -> Change:
            def change(row: NodeRow) -> NodeRow | None:
                for number in numbers:
                    row, answers[number] = after_order(
                        row, orders[number].message, now, can_deploy=can_deploy
                    )
                return row

            return change

        await keeper.change({node: change_by(numbers) for node, numbers in of_nodes.items()})
        said: list[Said] = []
        for number, each in enumerate(orders):
            if (answer := answers[number]) is not None:
                if isinstance(answer, SpawnFailed):
                    log.info("a deploy on node %s is refused: %s", answer.host, answer.reason)
                elif isinstance(answer, InstanceRedeployed) and answer.failure:
                    log.info("a rebuild on node %s is refused: %s", answer.host, answer.failure)
                said.append(Tell(answer, each))
        return said

    return dict.fromkeys((DeployInstance, UndeployInstance, RedeployInstance), on_orders)
