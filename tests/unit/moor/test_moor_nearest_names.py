"""A misspelt trait or class is answered with the names near it; a boot that names no size is not sent."""

from typing import Any

import pytest
from click.testing import CliRunner

from moor.commands import app


@pytest.mark.parametrize(
    "words", [["boot"], ["boot", "--name", "web"], ["plan"], ["boot", "--trait", "HW_CPU_X86_AVX"]]
)
def test_without_a_size_nothing_is_sent_nor_connected(words: list[str]) -> None:
    nowhere: dict[str, Any] = {"COLUMNS": "300", "MOOR_BUS_URL": "amqp://127.0.0.1:1/"}
    ended = CliRunner(env=nowhere).invoke(app, words)
    assert (ended.exit_code, "no size is named: give --flavor NAME, or --vcpus" in ended.output) == (2, True)
    sized = CliRunner(env=nowhere).invoke(app, [*words, "--disk", "1"])
    assert (sized.exit_code, "no broker" in sized.output) == (1, True), sized.output
