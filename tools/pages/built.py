"""The pages and documents of the site that are made from the code and from nothing else.

`make docs` builds them into the site (deploy/site/hooks.py). None is committed, so a change of the code has no second diff.
"""

import json
from collections.abc import Mapping
from typing import Any

from tools.pages import (
    bus_reference,
    client_page,
    command_reference,
    metrics_page,
    moves_page,
    placement_reference,
    settings_page,
)
from tools.pages.placement_openapi import every_route, openapi


def pages() -> dict[str, str]:
    """The text of each, by its name in docs/."""
    return {
        "bus-reference.md": bus_reference.page(),
        "client-reference.md": client_page.page(),
        "command-reference.md": command_reference.page(),
        "metrics.md": metrics_page.page(),
        "moves-reference.md": moves_page.page(),
        "placement-reference.md": placement_reference.page(),
        "settings.md": settings_page.page(),
        "asyncapi.json": _json(bus_reference.asyncapi()),
        "placement-openapi.json": _json(openapi(every_route())),
    }


def _json(document: Mapping[str, Any]) -> str:
    return f"{json.dumps(document, indent=2)}\n"
