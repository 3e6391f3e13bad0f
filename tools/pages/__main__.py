"""Writes the committed files that are made from the code: `python -m tools.pages`.

`tools/pages/built.py` has the pages that are generated whole: only the site has these.
"""

import json
from pathlib import Path

from tools.pages import dashboard, golden, rights

TOP = Path(__file__).parents[2]
DASHBOARD = TOP / "deploy" / "grafana" / "moorage.json"


def main() -> None:
    rights.FILE.write_text(rights.text())
    golden.write_missing()
    DASHBOARD.write_text(f"{json.dumps(dashboard.dashboard(), indent=2)}\n")


if __name__ == "__main__":
    main()
