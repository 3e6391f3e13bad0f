"""The settings of a worker in the place of nova-scheduler. How it chooses hosts is set in [scheduler]."""

import socket
from typing import Annotated

from msgspec import Meta, Struct

from bus.configuration.sections import Count, Seconds, Section

QueueWord = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.-]+\Z")]
QueueWordOrEmpty = Annotated[str, Meta(max_length=100, pattern=r"^[A-Za-z0-9_.-]*\Z")]


class NovaSchedulerSettings(Struct, frozen=True, kw_only=True):
    exchange: Annotated[
        QueueWord,
        Meta(
            description="Nova's exchange on its RabbitMQ: `control_exchange` of nova.conf. Another one only if Nova has another one."
        ),
    ] = "nova"
    topic: Annotated[
        QueueWord,
        Meta(
            description="The topic under which nova-conductor calls schedulers. Another one only for a Nova with a changed topic."
        ),
    ] = "scheduler"
    host: Annotated[
        QueueWordOrEmpty,
        Meta(
            description="The name of this scheduler among those of the topic: its own queue is TOPIC.HOST. Empty: the name of this machine. "
            "Each worker on a machine needs its own only if Nova calls single schedulers by name."
        ),
    ] = ""
    durable: Annotated[
        bool,
        Meta(
            description="Is the topic's queue durable, if it must be declared: `amqp_durable_queues` of nova.conf. A queue that exists is used as "
            "it is."
        ),
    ] = False
    auto_delete: Annotated[
        bool,
        Meta(
            description="Is the topic's queue deleted with its last consumer, if it must be declared: `amqp_auto_delete` of nova.conf."
        ),
    ] = False
    quorum: Annotated[
        bool,
        Meta(
            description="Is the topic's queue a quorum queue, if it must be declared: `rabbit_quorum_queue` of nova.conf. It is durable then."
        ),
    ] = False
    transient_quorum: Annotated[
        bool,
        Meta(
            description="Is the queue for casts to all schedulers a quorum queue: `rabbit_transient_quorum_queue` of nova.conf."
        ),
    ] = False
    transient_expires_s: Annotated[
        Count,
        Meta(
            description="After how long without a consumer the queue for casts to all schedulers is deleted: `rabbit_transient_queues_ttl` of "
            "nova.conf. Shorter leaves less behind a dead worker; longer misses less while the broker is away."
        ),
    ] = 1800
    prefetch: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)],
        Meta(
            description="How many requests this worker takes from Nova's queue before it has answered them. More decides larger batches; fewer "
            "leaves more to schedulers beside it."
        ),
    ] = 200
    batches_in_flight: Annotated[
        Annotated[int, Meta(ge=1, le=100)],
        Meta(
            description="How many batches of requests are decided at once: while one waits for placement, hosts are chosen for another. More "
            "uses waiting time; fewer makes fewer conflicts."
        ),
    ] = 2
    instances_at_once_max: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)],
        Meta(
            description="How many instances one batch may have; a request for more than these is a batch of its own. More decides faster; fewer "
            "answers the first ones sooner."
        ),
    ] = 1000
    reply_retry_s: Annotated[
        Seconds,
        Meta(
            description="How long an answer is tried whose queue does not exist; then its claim is released. Longer survives a caller's "
            "reconnect; shorter frees room sooner."
        ),
    ] = 30.0
    rpc_timeout_s: Annotated[
        Seconds,
        Meta(
            description="How long a caller waits that does not say so: `rpc_response_timeout` of nova.conf. An answer after this is not sent, and "
            "its claim is released."
        ),
    ] = 60.0

    @property
    def host_name(self) -> str:
        return self.host or socket.gethostname()


NOVA_SCHEDULER = Section("nova_scheduler", NovaSchedulerSettings, "`moor run nova-scheduler`")
