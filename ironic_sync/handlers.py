"""Handles orders to deploy, undeploy and rebuild nodes. The rules are in core/orders.py.

Any daemon writes an order on the node's row, and the node's owner does the work (deploying.py). An order is acknowledged when
its row is written. An immediate answer is sent before that, so it is sent again if the order is redelivered.
"""

import logging
from collections.abc import Sequence

from bus.message import ProviderId  # noqa: TC001 - like every other import
from bus.messages.cell import (
    DeployInstance,
    InstanceRedeployed,
    RedeployInstance,
    SpawnFailed,
    UndeployInstance,
)
from bus.moments import moment
from bus.workers.handling import Handlers, Received, Said, Tell
from ironic_sync.applying import Change, NodeWriter
from ironic_sync.core.orders import Order, after_order
from ironic_sync.core.rows import Answer, NodeRow

log = logging.getLogger(__name__)


async def _on_orders(orders: Sequence[Received[Order]], writer: NodeWriter) -> list[Said]:
    now, can_deploy = moment(writer.clock_us()), writer.policy.can_read
    of_nodes: dict[ProviderId, list[int]] = {}
    for number, each in enumerate(orders):
        of_nodes.setdefault(each.message.host, []).append(number)
    answers: dict[int, Answer | None] = {}

    def change_by(numbers: Sequence[int]) -> Change:
        def change(row: NodeRow) -> NodeRow | None:
            for number in numbers:
                row, answers[number] = after_order(row, orders[number].message, now, can_deploy=can_deploy)
            return row

        return change

    await writer.change({node: change_by(numbers) for node, numbers in of_nodes.items()})
    results: list[Said] = []
    for number, each in enumerate(orders):
        if (answer := answers[number]) is not None:
            if isinstance(answer, SpawnFailed):
                log.info("a deploy on node %s is refused: %s", answer.host, answer.reason)
            elif isinstance(answer, InstanceRedeployed) and answer.failure:
                log.info("a rebuild on node %s is refused: %s", answer.host, answer.failure)
            results.append(Tell(answer, each))
    return results


HANDLERS: Handlers = dict.fromkeys((DeployInstance, UndeployInstance, RedeployInstance), _on_orders)
