"""CHANGELOG.md: the version that `moor --version` says is there, and every entry stands below its kind and its subject."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CHANGELOG.md").read_text()
KINDS = ("Added", "Changed", "Fixed")
RELEASE = re.compile(r"## (Unreleased: (?P<next>[\d.]+)|(?P<version>[\d.]+), \d{4}-\d\d-\d\d)")
RELEASES = [line for line in PAGE.splitlines() if line.startswith("## ")]


def test_the_first_section_is_of_the_version_that_the_package_has() -> None:
    found = [RELEASE.fullmatch(line) for line in RELEASES]
    assert all(found), RELEASES
    versions = [each["next"] or each["version"] for each in found if each is not None]

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert versions[0] == project["version"]
    assert len({*versions}) == len(versions)
    assert [line for line in RELEASES[1:] if "Unreleased" in line] == []


def test_the_readme_says_that_there_is_no_release_as_long_as_no_section_is_one() -> None:
    sections = [found for line in RELEASES if (found := RELEASE.fullmatch(line))]
    releases = [each["version"] for each in sections if each["version"]]

    for page in ((ROOT / "README.md").read_text(), PAGE):
        assert ("No release has been made yet" in page) is (not releases)


def test_every_entry_stands_below_its_subject_and_a_change_also_below_its_kind() -> None:
    places = {"##": "", "###": "", "####": ""}
    wrong = []
    for number, line in enumerate(PAGE.splitlines(), 1):
        if line.startswith("#") and (mark := line.partition(" ")[0]) in places:
            places |= {deeper: "" for deeper in places if len(deeper) > len(mark)} | {mark: line}
        elif line.startswith("- "):
            # The first release says what there is, and no changes.
            kind = places["###"].removeprefix("### ")
            if places["##"] == RELEASES[-1]:
                is_placed = kind not in ("", *KINDS)
            else:
                is_placed = kind in KINDS and bool(places["####"])
            if not is_placed:
                wrong.append(f"{number}: {line}")

    assert wrong == []
