"""The page at the end of `make proof`."""

from pathlib import Path

from tests.proven import page, read

XML = """<testsuites><testsuite time="12.5">
<testcase classname="tests.unit.test_a" name="test_one" time="1.5" />
<testcase classname="tests.unit.test_a" name="test_two[x]" time="9"><failure message="no" /></testcase>
<testcase classname="tests.unit.test_a" name="test_three" time="0"><skipped message="needs a kernel" /></testcase>
<testcase classname="tests.unit.test_a" name="test_four" time="0"><error message="its setup" /></testcase>
</testsuite></testsuites>"""


def test_it_says_what_ran_what_failed_and_what_did_not_run(tmp_path: Path) -> None:
    (tmp_path / "unit.xml").write_text(XML)

    said = [*page([read(tmp_path / "unit.xml")], ["unit", "stories"], ["9 bugs: 9 seen by 2 kinds"])]

    assert "unit: 1 passed, 2 FAILED, 1 skipped, in 12 s" in said
    assert "DID NOT END: stories" in said
    assert [line for line in said if line.startswith("FAILED")] == [
        "FAILED: tests.unit.test_a::test_two[x]",
        "FAILED: tests.unit.test_a::test_four",
    ]
    assert "  9 s: tests.unit.test_a::test_two[x]" in said
    assert "  1 tests: needs a kernel" in said
    assert said[-1] == "  9 bugs: 9 seen by 2 kinds"
