"""A config drive as its parts, from which Ironic makes the drive. It travels as JSON in the field `config_drive`."""

from typing import Any

import msgspec
from msgspec import Struct


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


def text_of(parts: ConfigDriveParts) -> str:
    return msgspec.json.encode(parts).decode()
