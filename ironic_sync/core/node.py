"""A bare-metal node as Ironic describes it, in its notifications and in its REST API alike."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Struct

from bus.message import ProviderId


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of an Ironic node that Moorage uses, in Ironic's words. None means null.

    `shard` is in no notification: empty until the node was read by REST.
    """

    id: ProviderId
    name: str | None = None
    provision_state: str | None = None
    target_provision_state: str | None = None
    power_state: str | None = None
    maintenance: bool = False
    maintenance_reason: str | None = None
    fault: str | None = None
    retired: bool = False
    resource_class: str | None = None
    traits: tuple[str, ...] = ()
    instance_uuid: UUID | None = None
    owner: str | None = None
    lessee: str | None = None
    conductor_group: str = ""
    shard: str | None = None
    driver: str | None = None
    last_error: str | None = None
    provision_updated_at: datetime | None = None
    properties: Mapping[str, Any] = {}


class InterfaceCheck(Struct, frozen=True):
    """Ironic's result for one interface of a node; `result` is None for one that the node's driver does not have."""

    result: bool | None
    reason: str | None = None
