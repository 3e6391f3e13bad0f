"""docs/settings.md has all settings as the code has them, and every setting is explained."""

import re
from pathlib import Path
from typing import Any

import pytest

from bus.configuration.sections import Section
from moor.settings import TOP
from moor.worker_settings import SECTIONS
from tests.pages.settings_page import page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
WORDS_MAX = 60


def test_the_page_matches_the_code() -> None:
    assert PAGE.read_text() == page(), "python -m tests.pages"


@pytest.mark.parametrize("section", [TOP, *SECTIONS.values()], ids=lambda section: section.name or "top")
def test_every_setting_is_explained_in_a_few_plain_sentences(section: Section[Any]) -> None:
    texts = {field: each.meaning for field, each in section.settings.items()}

    wrong = {
        field: text
        for field, text in texts.items()
        if not re.fullmatch(r"[A-Z*].*\.", text) or len(text.split()) > WORDS_MAX
    }
    assert wrong == {}
