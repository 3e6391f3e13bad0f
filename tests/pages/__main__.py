"""Writes the generated parts of the pages in docs/, and the other committed files that are made from the code: `python -m tests.pages`.

`tests/pages/built.py` has the pages that are generated whole: only the site has these.
"""

import json
from pathlib import Path

from tests.pages import command_helps, dashboard, nova_map, rights

TOP = Path(__file__).parents[2]
DOCS = TOP / "docs"
DASHBOARD = TOP / "deploy" / "grafana" / "moorage.json"


def main() -> None:
    _replace("nova", nova_map.BEGIN, nova_map.END, nova_map.section())
    command_helps.FILE.write_text(command_helps.page())
    rights.FILE.write_text(rights.text())
    DASHBOARD.write_text(f"{json.dumps(dashboard.dashboard(), indent=2)}\n")


def _replace(name: str, begin: str, end: str, section: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    before, after = page.partition(begin)[0], page.partition(end)[2]
    (DOCS / f"{name}.md").write_text(f"{before}{section}{after}")


if __name__ == "__main__":
    main()
