"""The table of Ironic's event types for nodes and allocations, and how each is treated.

The notification that a request to Ironic's API has started carries the values that were asked for, true or not: only
the one at the request's end is believed. A notification of a changed state is believed with any status, since it
carries the node as it is.
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

Treatment = Literal["taken", "taken and doubted", "deleted", "doubted", "ignored", "allocation"]


class Event(Struct, frozen=True):
    treatment: Treatment
    kind: str
    reason: str = ""


_ASKED_FOR = "a start carries the values that were asked for, true or not"
_NO_NODE = "not about a node"
_NO_OFFER = "a console changes no offer"
_NOT_YET = "an allocation that starts has taken no node yet"


def _event_table() -> dict[str, Event]:
    rows: list[tuple[str, str, Treatment, str]] = [
        ("node.provision_set", "start success end", "taken", ""),
        ("node.provision_set", "error", "taken and doubted", ""),
        ("node.power_state_corrected", "start success end", "taken", ""),
        ("node.power_state_corrected", "error", "taken and doubted", ""),
        ("node.power_set", "end", "taken", ""),
        ("node.create", "end", "taken", ""),
        ("node.update", "end", "taken", ""),
        ("node.maintenance_set", "end", "taken", ""),
        ("node.delete", "end", "deleted", ""),
        ("node.console_set", "start end error", "ignored", _NO_OFFER),
    ]
    for kind in ("power_set", "create", "update", "maintenance_set", "delete"):
        rows += [(f"node.{kind}", "start", "ignored", _ASKED_FOR), (f"node.{kind}", "error", "doubted", "")]
    for kind in ("create", "update", "delete"):
        rows += [(f"allocation.{kind}", "start", "ignored", _NOT_YET)]
        rows += [(f"allocation.{kind}", "end error", "allocation", "")]
        rows += [
            (f"{other}.{kind}", "start end error", "ignored", _NO_NODE)
            for other in ("port", "portgroup", "chassis", "deploytemplate", "runbook")
        ]
    return {
        f"baremetal.{subject}.{status}": Event(treatment, subject.partition(".")[2], reason)
        for subject, statuses, treatment, reason in rows
        for status in statuses.split()
    }


EVENTS: Final[Mapping[str, Event]] = _event_table()
