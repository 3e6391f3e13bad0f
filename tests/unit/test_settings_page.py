"""Every setting is explained, and its page has every setting."""

import re
from typing import Any

import pytest

from kit.settings import Section
from moor.settings import GENERAL
from moor.worker_settings import SECTIONS
from tools.pages.settings_page import page

WORDS_MAX = 60


def test_the_page_has_a_line_for_every_setting() -> None:
    lines = [line for line in page().splitlines() if line.startswith("| `")]

    assert len(lines) == sum(len(section.settings) for section in (GENERAL, *SECTIONS.values()))


@pytest.mark.parametrize("section", [GENERAL, *SECTIONS.values()], ids=lambda section: section.name or "top")
def test_every_setting_is_explained_in_a_few_plain_sentences(section: Section[Any]) -> None:
    texts = {field: each.meaning for field, each in section.settings.items()}

    wrong = {
        field: text
        for field, text in texts.items()
        if not re.fullmatch(r"[A-Z*].*\.", text) or len(text.split()) > WORDS_MAX
    }
    assert wrong == {}
