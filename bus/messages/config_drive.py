"""A config drive as its parts, from which Ironic or a compute makes the drive. It travels as JSON in the field
`config_drive`.
"""

import re
from typing import Any

import msgspec
from msgspec import Struct, structs

from bus.messages.build import InstanceId

HOST_NAME_MAX = 63


class ConfigDriveParts(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The files of a config drive. `meta_data` and `network_data` are objects as OpenStack's metadata service gives them;
    `user_data` is the text that cloud-init, for example, runs.
    """

    meta_data: dict[str, Any] = {}
    user_data: str = ""
    network_data: dict[str, Any] = {}


def parts_of(config_drive: str) -> ConfigDriveParts | None:
    """The parts of this config drive; None if it is a URL or an image. Raises ValueError if it begins like JSON and has not the
    form of parts.
    """
    if not config_drive.startswith("{"):
        return None
    try:
        return msgspec.json.decode(config_drive, type=ConfigDriveParts)
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise ValueError(
            f"it begins with '{{', but is no JSON object of meta_data, user_data and network_data: {problem}"
        ) from None


def with_names(parts: ConfigDriveParts, instance: InstanceId, name: str) -> ConfigDriveParts:
    """The parts with the id and names of the instance, unless they are given: a request for several instances cannot name each."""
    name = name or str(instance)
    usual = {"uuid": str(instance), "name": name, "hostname": _host_name(name)}
    return structs.replace(parts, meta_data=usual | parts.meta_data)


def _host_name(name: str) -> str:
    """The name with only those characters that a host's name may have."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:HOST_NAME_MAX].rstrip("-") or "instance"


def text_of(parts: ConfigDriveParts) -> str:
    return msgspec.json.encode(parts).decode()
