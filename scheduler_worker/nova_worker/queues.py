"""The queues and exchanges of Nova's scheduler RPC, declared as oslo.messaging does, so that schedulers of Nova can stand beside us."""

from bus.rabbit.rpc import ForeignExchange, ForeignQueue
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings


def rpc_queues(settings: NovaSchedulerSettings, unique: str) -> tuple[ForeignQueue, ...]:
    """The queue of the topic, the one of this scheduler alone, and the one for casts to all, which `unique` names."""
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
        for topic in (settings.topic, f"{settings.topic}.{settings.host_name}")
    )
    return (*topics, _fanout(settings, unique))


def _fanout(settings: NovaSchedulerSettings, unique: str) -> ForeignQueue:
    name = f"{settings.topic}_fanout"
    is_durable = settings.transient_quorum
    arguments: dict[str, str | int] = {"x-expires": settings.transient_expires_s * 1000}
    if settings.transient_quorum:
        arguments["x-queue-type"] = "quorum"
    return ForeignQueue(
        f"{name}_{unique}",
        ForeignExchange(name, "fanout", is_durable=is_durable, is_auto_deleted=True),
        settings.topic,
        is_durable=is_durable,
        arguments=arguments,
    )
