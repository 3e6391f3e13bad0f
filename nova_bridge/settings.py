"""The section [nova]: where a Nova and its placement are, and how their nova.conf has it. How hosts are chosen is set in [scheduler]."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from bus.addresses import ServiceUrl
from kit.settings import Seconds, Section, require
from nova_bridge.cloud import DEFAULT_ZONE

QueueWord = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.-]+\Z")]


class NovaSettings(Struct, frozen=True, kw_only=True):
    url: Annotated[
        ServiceUrl,
        Meta(
            description="Nova's compute API: http://host:8774, with or without /v2.1, or `keystone`: the address in Keystone's catalogue. "
            "Empty: no Nova is asked."
        ),
    ] = ""
    placement_url: Annotated[
        ServiceUrl,
        Meta(
            description="The placement for which `moor run nova-scheduler` schedules, ours or OpenStack's: http://host:port/path, or "
            "`keystone`: the address in Keystone's catalogue."
        ),
    ] = ""
    exchange: Annotated[
        QueueWord,
        Meta(
            description="Nova's exchange on its RabbitMQ, for RPC and notifications: `control_exchange` of nova.conf."
        ),
    ] = "nova"
    topics: Annotated[
        tuple[str, ...],
        Meta(
            description="The topics of Nova's versioned notifications. Nova needs notification_format = versioned or both."
        ),
    ] = ("versioned_notifications",)
    queues: Annotated[
        Literal["transient", "durable", "quorum", "all_quorum"],
        Meta(
            description="What the queues of Nova's scheduler are, if they must be declared; one that exists is used as it is. durable: "
            "`amqp_durable_queues` of nova.conf, quorum: `rabbit_quorum_queue`, all_quorum: `rabbit_transient_quorum_queue` as well."
        ),
    ] = "transient"
    rpc_timeout_s: Annotated[
        Seconds,
        Meta(
            description="How long a caller waits that does not say so: `rpc_response_timeout` of nova.conf. An answer after this is not sent, and "
            "its claim is released. In shadow mode, Nova counts as having found no host after this."
        ),
    ] = 60.0
    freed_after_s: Annotated[
        Seconds,
        Meta(
            description="How long Nova must not know a consumer before `moor audit --heal` frees it: longer than Nova's "
            "long_rpc_timeout (1800). Shorter frees sooner, and may free what is still being built."
        ),
    ] = 1900.0
    default_zone: Annotated[
        str,
        Meta(
            description="The availability zone of hosts in no aggregate with a zone: Nova's default_availability_zone."
        ),
    ] = DEFAULT_ZONE
    read_s: Annotated[
        Seconds,
        Meta(
            description="How often all hosts, services and aggregates are read. Shorter finds lost notifications sooner; "
            "longer loads Nova less."
        ),
    ] = 300.0
    shadow_file: Annotated[
        str,
        Meta(
            description="The file of the notes of shadow mode, which `moor nova shadow` reads: one line of JSON for each instance. A second "
            "one with `.before` at the end has the older ones."
        ),
    ] = "nova-shadow.jsonl"

    def __post_init__(self) -> None:
        wrong = [name for name in self.topics if not name or {*name} & {"*", "#"}]
        require(
            bool(self.topics) and not wrong, f"topics is {self.topics!r}, must be names without '*' and '#'"
        )
        require(bool(self.shadow_file.strip()), f"shadow_file is {self.shadow_file!r}, must name a file")


NOVA = Section(
    "nova",
    NovaSettings,
    "`moor run nova-scheduler`, and `moor audit` if a Nova uses placement",
    # What `moor nova import` reads, and Nova's broker, stand in no section.
    others=("api_db", "cell_dbs", "placement_db", "bus_url"),
)
