"""Every link of README.md leads to a file of the repository, and to a heading of it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?P<path>(?!https?:)[^)#\s]+)(?:#(?P<anchor>[^)\s]+))?\)")


def anchor_of(heading: str) -> str:
    """As readers of Markdown make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_every_link_of_the_readme_leads_somewhere() -> None:
    lost = []
    for link in LINK.finditer((ROOT / "README.md").read_text()):
        file = ROOT / link["path"]
        headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if file.suffix == ".md" else []
        if not file.exists() or (link["anchor"] and link["anchor"] not in map(anchor_of, headings)):
            lost.append(link[0])

    assert lost == []
