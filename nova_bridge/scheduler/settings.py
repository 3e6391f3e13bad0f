"""The settings of a worker in the place of nova-scheduler. How it chooses hosts is set in [scheduler]."""

from typing import Annotated

from msgspec import Meta, Struct

from bus.addresses import ServiceUrl
from kit.login import RestService
from kit.settings import Seconds, Section

QueueWord = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.-]+\Z")]


class NovaSchedulerSettings(Struct, frozen=True, kw_only=True):
    exchange: Annotated[
        QueueWord,
        Meta(
            description="Nova's exchange on its RabbitMQ: `control_exchange` of nova.conf. Another one only if Nova has another one."
        ),
    ] = "nova"
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
    rpc_timeout_s: Annotated[
        Seconds,
        Meta(
            description="How long a caller waits that does not say so: `rpc_response_timeout` of nova.conf. An answer after this is not sent, and "
            "its claim is released."
        ),
    ] = 60.0


NOVA_SCHEDULER = Section("nova_scheduler", NovaSchedulerSettings, "`moor run nova-scheduler`")

# The settings of the placement in which is claimed for a Nova.


class NovaPlacementSettings(Struct, frozen=True, kw_only=True):
    url: Annotated[
        ServiceUrl,
        Meta(
            description="The placement for which `moor run nova-scheduler` schedules, ours or OpenStack's: http://host:port/path, or "
            "`keystone`: the address in Keystone's catalogue."
        ),
    ] = ""
    refresh_s: Annotated[
        Seconds,
        Meta(
            description="How often placement is asked which providers have changed. Shorter chooses by newer data, for more requests; it is "
            "asked anyway after a conflict, and before a request is refused."
        ),
    ] = 5.0


NOVA_PLACEMENT = Section(
    "nova_placement",
    NovaPlacementSettings,
    "the placement of `moor run nova-scheduler`",
    # `nova_placement_db`, which `moor import nova` reads.
    others=("db",),
)
PLACEMENT_SERVICE = RestService(
    name="Placement",
    url_key="nova_placement.url",
    types=("placement",),
    version="/",
)
