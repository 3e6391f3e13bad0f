"""docs/nova.md has the map of Nova's filters, weighers and options that the command follows."""

from pathlib import Path

from tests.pages.nova_map import BEGIN, END, section

PAGE = (Path(__file__).parents[2] / "docs" / "nova.md").read_text()


def test_the_page_matches_the_map() -> None:
    written = PAGE[PAGE.index(BEGIN) : PAGE.index(END) + len(END)]

    assert written == section(), "python -m tests.pages"
