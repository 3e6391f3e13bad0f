"""The public Python client of Moorage: `from moor.client import Client`. docs/client.md describes it.

It knows the bus and its messages, and nothing of a terminal. The `moor` commands are built on the same parts.
"""

from bus.messages.build import (
    AttemptFailed,
    FlavorChange,
    InstanceDetails,
    InstanceState,
    Move,
    Size,
    Waiting,
)
from bus.messages.cell import ConsoleFound
from bus.messages.cloud import CellState
from bus.messages.moves import Change, MoveWait
from bus.messages.planning import DrainFound, Explanation, ExplanationsFound, PlanFound
from bus.messages.stored_names import GroupState, NamedImage
from engine.flavors import (
    DeviceGroup,
    DeviceProfile,
    Flavor,
    FlavorPassedOver,
    Image,
    InstanceId,
    JoinedGroup,
    PortRequest,
    RequestId,
    VolumeRequest,
    Wait,
)
from engine.hosts import HostMode, HostState
from engine.inventories import QuotaState
from engine.refusals import FunnelStep, HostVerdict, Miss, NoValidHost
from moor.client.client import Client, SyncClient, SyncSentRequest
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
from moor.client.hosts import Emptied, Stayed
from moor.client.requests import BuildFields, MoveFields, OrderFields, SentRequest, StateName

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
