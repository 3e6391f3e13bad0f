"""Writes the generated pages into docs/, and moor/command_helps.py: `python -m tests.pages`."""

import json
from pathlib import Path

from placement_worker.api.openapi_document import openapi
from tests.pages import (
    authority_table,
    bus_reference,
    client_page,
    command_helps,
    command_reference,
    dashboard,
    metrics_page,
    moves_page,
    nova_map,
    placement_reference,
    settings_page,
)
from tests.pages.placement_openapi import every_route

TOP = Path(__file__).parents[2]
DOCS = TOP / "docs"
DASHBOARD = TOP / "deploy" / "grafana" / "moorage.json"


def main() -> None:
    _replace("bus-reference", bus_reference.BEGIN, bus_reference.END, bus_reference.reference())
    _replace("bus-reference", authority_table.BEGIN, authority_table.END, authority_table.section())
    _replace("moves", moves_page.BEGIN, moves_page.END, moves_page.section())
    _replace("client", client_page.BEGIN, client_page.END, client_page.section())
    _replace("nova", nova_map.BEGIN, nova_map.END, nova_map.section())
    (DOCS / "settings.md").write_text(settings_page.page())
    command_helps.FILE.write_text(command_helps.page())
    command_reference.FILE.write_text(command_reference.page())
    placement_reference.FILE.write_text(placement_reference.page())
    (DOCS / "metrics.md").write_text(metrics_page.page())
    DASHBOARD.write_text(f"{json.dumps(dashboard.dashboard(), indent=2)}\n")
    for name, document in (
        ("asyncapi", bus_reference.asyncapi()),
        ("placement-openapi", openapi(every_route())),
    ):
        (DOCS / f"{name}.json").write_text(f"{json.dumps(document, indent=2)}\n")


def _replace(name: str, begin: str, end: str, section: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    before, after = page.partition(begin)[0], page.partition(end)[2]
    (DOCS / f"{name}.md").write_text(f"{before}{section}{after}")


if __name__ == "__main__":
    main()
