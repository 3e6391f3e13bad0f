"""The public Python client of Moorage: `from moor.client import Client`. docs/client.md describes it.

It knows the bus and its messages, and nothing of a terminal. The `moor` commands are built on the same parts.
"""

from bus.messages.build import (
    AttemptFailed,
    Flavor,
    FlavorChange,
    FlavorPassedOver,
    FunnelStep,
    Image,
    InstanceDetails,
    InstanceId,
    InstanceState,
    JoinedGroup,
    Miss,
    Move,
    NoValidHost,
    PortRequest,
    RequestId,
    Size,
    VolumeRequest,
    Wait,
    Waiting,
)
from bus.messages.cells import CellState
from bus.messages.consoles import ConsoleFound
from bus.messages.device_profiles import DeviceGroup, DeviceProfile
from bus.messages.groups import GroupState
from bus.messages.hosts import HostMode, HostState
from bus.messages.images import NamedImage
from bus.messages.moves import Change, MoveWait
from bus.messages.planning import (
    DrainFound,
    Explanation,
    ExplanationsFound,
    HostVerdict,
    PlanFound,
)
from bus.messages.quotas import QuotaState
from moor.client.async_client import Client
from moor.client.emptying import Emptied, Stayed
from moor.client.errors import (
    BrokerAway,
    BrokerRefused,
    ClientError,
    NoConsoleFound,
    NoHostFound,
    NotAllowed,
    NotDone,
    NotFound,
    NotInTime,
    NotSendable,
    Rejected,
)
from moor.client.fields import BuildFields, MoveFields, OrderFields, StateName
from moor.client.requests import SentRequest
from moor.client.sync_client import SyncClient, SyncSentRequest

__all__ = [
    "AttemptFailed",
    "BrokerAway",
    "BrokerRefused",
    "BuildFields",
    "CellState",
    "Change",
    "Client",
    "ClientError",
    "ConsoleFound",
    "DeviceGroup",
    "DeviceProfile",
    "DrainFound",
    "Emptied",
    "Explanation",
    "ExplanationsFound",
    "Flavor",
    "FlavorChange",
    "FlavorPassedOver",
    "FunnelStep",
    "GroupState",
    "HostMode",
    "HostState",
    "HostVerdict",
    "Image",
    "InstanceDetails",
    "InstanceId",
    "InstanceState",
    "JoinedGroup",
    "Miss",
    "Move",
    "MoveFields",
    "MoveWait",
    "NamedImage",
    "NoConsoleFound",
    "NoHostFound",
    "NoValidHost",
    "NotAllowed",
    "NotDone",
    "NotFound",
    "NotInTime",
    "NotSendable",
    "OrderFields",
    "PlanFound",
    "PortRequest",
    "QuotaState",
    "Rejected",
    "RequestId",
    "SentRequest",
    "Size",
    "StateName",
    "Stayed",
    "SyncClient",
    "SyncSentRequest",
    "VolumeRequest",
    "Wait",
    "Waiting",
]
