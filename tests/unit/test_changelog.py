"""CHANGELOG.md: the version that `moor --version` says is there, and every entry stands below its kind and its subject."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CHANGELOG.md").read_text()
KINDS = ("Added", "Changed", "Fixed")
RELEASE = re.compile(
    r"## (Unreleased: (?P<next>[\d.]+)|(?P<version>[\d.]+), \d{4}-\d\d-\d\d(?P<not_released>, not released)?)"
)


def test_the_first_section_is_of_the_version_that_the_package_has() -> None:
    releases = [line for line in PAGE.splitlines() if line.startswith("## ")]
    found = [RELEASE.fullmatch(line) for line in releases]
    assert all(found), releases
    versions = [each["next"] or each["version"] for each in found if each is not None]

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert versions[0] == project["version"]
    assert len({*versions}) == len(versions)
    assert [line for line in releases[1:] if "Unreleased" in line] == []


def test_the_readme_says_that_there_is_no_release_as_long_as_no_section_is_one() -> None:
    sections = [found for line in PAGE.splitlines() if (found := RELEASE.fullmatch(line))]
    releases = [each["version"] for each in sections if each["version"] and not each["not_released"]]

    for page in ((ROOT / "README.md").read_text(), PAGE):
        assert ("No release has been made yet" in page) is (not releases)


def test_every_entry_stands_below_its_kind_and_its_subject() -> None:
    places = {"##": "", "###": "", "####": ""}
    wrong = []
    for number, line in enumerate(PAGE.splitlines(), 1):
        if line.startswith("#") and (mark := line.partition(" ")[0]) in places:
            places[mark] = line
            for deeper in ("###", "####"):
                if len(deeper) > len(mark):
                    places[deeper] = ""
        elif line.startswith("- ") and not places["###"].endswith("In short"):
            kind = places["###"].removeprefix("### ")
            if kind not in KINDS or not places["####"]:
                wrong.append(f"{number}: {line}")

    assert wrong == []
