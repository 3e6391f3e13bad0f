"""What an operator may tune of how a Nova is read and heard, which schedules through us."""

from typing import Annotated

from msgspec import Meta, Struct

from bus.addresses import ServiceUrl
from kit.settings import Seconds, Section, require
from nova_bridge.cloud import DEFAULT_ZONE


class NovaCloudSettings(Struct, frozen=True, kw_only=True):
    url: Annotated[
        ServiceUrl,
        Meta(
            description="Nova's compute API: http://host:8774, with or without /v2.1, or `keystone`: the address in Keystone's catalogue. "
            "Empty: no Nova is asked."
        ),
    ] = ""
    api_db: Annotated[
        str,
        Meta(
            description="Nova's API database, which alone says the cell of each host: mysql://USER:PASSWORD@HOST/nova_api, or "
            "sqlite:///FILE. It is only read. Empty: nova_api_db."
        ),
    ] = ""
    read_s: Annotated[
        Seconds,
        Meta(
            description="How often all hosts, services and aggregates are read. Shorter finds lost notifications sooner; "
            "longer loads Nova less."
        ),
    ] = 300.0
    services_s: Annotated[
        Seconds,
        Meta(
            description="How often the services are read: nothing else tells which of them are up. Shorter avoids dead computes sooner; longer "
            "loads Nova less."
        ),
    ] = 20.0
    rpc_timeout_s_max: Annotated[
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
    exchange: Annotated[
        str,
        Meta(description="The exchange to which Nova publishes its notifications."),
    ] = "nova"
    topics: Annotated[
        tuple[str, ...],
        Meta(
            description="The topics of Nova's versioned notifications. Nova needs notification_format = versioned or both."
        ),
    ] = ("versioned_notifications",)

    def __post_init__(self) -> None:
        require(
            self.services_s <= self.read_s,
            f"services_s is {self.services_s}, must be at most read_s ({self.read_s})",
        )
        for field, names in (("exchange", (self.exchange,)), ("topics", self.topics)):
            wrong = [name for name in names if not name or {*name} & {"*", "#"}]
            require(bool(names) and not wrong, f"{field} is {names!r}, must be names without '*' and '#'")


NOVA_CLOUD = Section("nova_cloud", NovaCloudSettings, "what reads and hears Nova")
