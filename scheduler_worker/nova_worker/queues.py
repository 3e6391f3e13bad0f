"""The queues and exchanges of Nova's scheduler RPC, declared as oslo.messaging does, so that schedulers of Nova can stand beside us."""

import socket

from bus.rabbit.rpc import ForeignExchange, ForeignQueue
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings

# What nova-conductor calls schedulers by.
TOPIC = "scheduler"
# Of the queue for casts, which each worker has anew, as in Nova: a shorter absence of the broker loses none.
CASTS_EXPIRE_MS = 1_800_000


def rpc_queues(settings: NovaSchedulerSettings, unique: str) -> tuple[ForeignQueue, ...]:
    """The queue of the topic, the one of this machine alone, and the one for casts to all, which `unique` names."""
    exchange = ForeignExchange(
        settings.exchange,
        is_durable=settings.durable or settings.quorum,
        is_auto_deleted=settings.auto_delete,
    )
    topics = tuple(
        ForeignQueue(
            topic,
            exchange,
            topic,
            is_durable=settings.durable or settings.quorum,
            is_auto_deleted=settings.auto_delete,
            arguments={"x-queue-type": "quorum"} if settings.quorum else {},
        )
        for topic in (TOPIC, f"{TOPIC}.{socket.gethostname()}")
    )
    return (*topics, _fanout(settings, unique))


def _fanout(settings: NovaSchedulerSettings, unique: str) -> ForeignQueue:
    name = f"{TOPIC}_fanout"
    is_durable = settings.transient_quorum
    arguments: dict[str, str | int] = {"x-expires": CASTS_EXPIRE_MS}
    if settings.transient_quorum:
        arguments["x-queue-type"] = "quorum"
    return ForeignQueue(
        f"{name}_{unique}",
        ForeignExchange(name, "fanout", is_durable=is_durable, is_auto_deleted=True),
        TOPIC,
        is_durable=is_durable,
        arguments=arguments,
    )
