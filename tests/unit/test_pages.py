"""The pages say what is so: each file, heading, setting and command that they name exists, and a figure of another page agrees with it.

The figures are those of docs/benchmarks.md.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from moor.commands import command_of, is_known
from moor.settings import GENERAL
from moor.worker_settings import SECTIONS

ROOT = Path(__file__).parents[2]
LISTED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
)
FILES = LISTED.stdout.splitlines()
FOLDERS = {str(parent) for each in FILES for parent in Path(each).parents}
NAMES = {Path(each).name for each in (*FILES, *FOLDERS)}
TOPS = {each.partition("/")[0] for each in FILES if "/" in each}
PAGES = [
    ROOT / each for each in FILES if each.endswith(".md") and (each.startswith("docs/") or "/" not in each)
]
# What `make docs` adds to the site, and files of the reader's own.
BUILT = ("reference.md", "settings.md", "metrics.md", "changes.md")
NAMED_FILE = re.compile(r"`(?P<path>[\w.-]+(?:/[\w.-]*)+|[\w-]+\.(?:py|md))(?:::\w+)?`")
LINK = re.compile(r"\]\((?!\w+:)(?P<file>[^)#\s]*)(?:#(?P<heading>[^)\s]+))?\)")
VARIABLE = re.compile(r"\bMOOR_[A-Z0-9_]*[A-Z0-9]\b(?![*_])")
SETTING = re.compile(rf"`(?P<section>{'|'.join(SECTIONS)})\.(?P<field>[a-z][a-z0-9_]+)`")
COMMAND = re.compile(r"`moor (?P<words>[a-z][a-z -]*)")
# Variables that are no settings.
OF_NO_SECTION = ("MOOR_CONFIG", "MOOR_COMPLETE", "MOOR_TEST_", "MOOR_RABBITMQ_API")
# What begins like a setting and is a file of another program, a key of a message, a queue or a metric.
OF_OTHERS = ("conf", "events", "sock", "requests", "work", "claims", "questions", "concurrent_update")


def prose(page: Path) -> str:
    """The text without its blocks of code, whose lines stay empty."""
    return re.sub(
        r"^```.*?^```",
        lambda block: "\n" * block[0].count("\n"),
        page.read_text(),
        flags=re.DOTALL | re.MULTILINE,
    )


def lines() -> Iterator[tuple[str, Path, str]]:
    for page in PAGES:
        for number, line in enumerate(prose(page).splitlines(), 1):
            yield f"{page.relative_to(ROOT)}:{number}", page, line


def anchors(page: Path) -> set[str]:
    headings = [line.lstrip("#") for line in prose(page).splitlines() if re.match(r"#+ ", line)]
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in headings]
    slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in plain}
    return slugs | {*re.findall(r'<a id="([^"]+)"', page.read_text())}


def test_each_file_that_a_page_names_exists() -> None:
    wrong = [
        f"{where}: {path}"
        for where, page, line in lines()
        if page.name != "CHANGELOG.md"
        for path in (found["path"].rstrip("/") for found in NAMED_FILE.finditer(line))
        if path.partition("/")[0] in TOPS or "/" not in path
        if not ((path in FILES or path in FOLDERS) if "/" in path else path in NAMES)
        # What the build makes, and a program that the page itself has.
        if not path.startswith(("build/", ".venvs")) and f"# {path}" not in page.read_text()
    ]
    assert not wrong, "\n".join(wrong)


def test_each_link_leads_to_a_file_and_a_heading() -> None:
    wrong = []
    for where, page, line in lines():
        for found in LINK.finditer(line):
            to = (page.parent / found["file"]).resolve() if found["file"] else page
            if to.name.endswith(BUILT) and not to.exists():
                continue
            if not to.exists() or (
                found["heading"] and to.suffix == ".md" and found["heading"] not in anchors(to)
            ):
                wrong.append(f"{where}: {found[0]}")
    assert not wrong, "\n".join(wrong)


def test_each_setting_that_a_page_names_exists() -> None:
    known = {
        setting.variable for section in (GENERAL, *SECTIONS.values()) for setting in section.settings.values()
    }
    wrong = [
        f"{where}: {name}"
        for where, page, line in lines()
        if page.name != "CHANGELOG.md"
        for name in VARIABLE.findall(line)
        if name not in known and not name.startswith(OF_NO_SECTION)
    ]
    wrong += [
        f"{where}: {found[0]}"
        for where, page, line in lines()
        if page.name != "CHANGELOG.md"
        for found in SETTING.finditer(line)
        if found["field"] not in (*SECTIONS[found["section"]].settings, *OF_OTHERS)
        if f"{found['section']}/{found['field']}" not in FOLDERS
    ]
    assert not wrong, "\n".join(wrong)


def is_command(words: list[str]) -> bool:
    """Do these words begin with a command, whose group has no verb that they might misspell?"""
    if not words or not is_known(words[0]):
        return False
    found: click.Command = command_of(words[0])
    for word in words[1:]:
        if not isinstance(found, click.Group):
            return True
        if word not in found.commands:
            return found.invoke_without_command
        found = found.commands[word]
    return True


def test_each_command_that_a_page_names_exists() -> None:
    wrong = []
    for where, page, line in lines():
        if page.name == "CHANGELOG.md":
            continue
        for found in COMMAND.finditer(line):
            words = found["words"].split(" -")[0].split()
            if line[found.end() : found.end() + 1] not in (" ", "`", "-", ""):
                # A name with other characters follows, or is cut off.
                words = words[:-1] or words
            if not is_command(words):
                wrong.append(f"{where}: moor {' '.join(words)}")
        if line.startswith("#") and page.name == "commands.md" and "`moor " in line:
            group = line.partition("`moor ")[2].partition("`")[0].split()[:-1]
            for each in re.findall(r"`([a-z -]+)`", line):
                words = (
                    each.removeprefix("moor ").split()
                    if each.startswith("moor ")
                    else [*group, *each.split()]
                )
                if not is_command(words):
                    wrong.append(f"{where}: the heading has {' '.join(words)}")
    assert not wrong, "\n".join(wrong)


BENCHMARKS = (ROOT / "docs/benchmarks.md").read_text()
SIZING = (ROOT / "docs/operate/sizing.md").read_text()
README = (ROOT / "README.md").read_text()


def figures(pattern: str, page: str = BENCHMARKS) -> list[float]:
    """The numbers in the groups of the pattern, at the one place of the page where it stands."""
    (found,) = re.finditer(pattern, page)
    return [float(each.replace(",", "")) for each in found.groups()]


def two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):,.0f}"


def test_sizing_says_what_a_boot_costs_and_how_many_a_core_does() -> None:
    whole, *parts = figures(
        r"Of (\d+) µs on servers the scheduler takes (\d+), the database (\d+), both conductors (\d+), the broker (\d+), "
        r"placement (\d+),\s+both computes (\d+)\."
    )
    schedulers, database, conductors, broker, placement, computes = parts
    of_parts = {
        "placement": placement,
        "schedulers": schedulers,
        "conductors": conductors,
        "the broker": broker,
        "PostgreSQL": database,
        "computes": computes,
    }
    told = ", ".join(f"{each / 1000:.2f} {name}" for name, each in of_parts.items())

    assert f"A boot costs about {whole / 1000:.2f} ms of CPU in all: {told}." in SIZING
    for name, each in {**of_parts, "RabbitMQ": broker}.items():
        if name not in ("the broker", "computes"):
            assert f"| {name} | {two_digits(1e6 / each)} |" in SIZING


@pytest.mark.parametrize(
    ("page", "told", "source"),
    [
        (SIZING, r"a bare-metal node costs ([\d.]+) ms", r"until every scheduler knows it \| ([\d.]+) ms"),
        (
            SIZING,
            r"100,000 instances takes (\d+) s",
            r"an audit of 100,000 instances on servers \| \d+ µs an instance \| (\d+) s",
        ),
        (README, r"\*\*([\d.]+) ms\*\*; OpenStack's own", r"1,000 candidates of 10,000 hosts \| ([\d.]+) ms"),
        (README, r"a plan with reasons (\d+) ms", r"a plan over 10,000 hosts, with reasons \| 6 to (\d+) ms"),
        (README, r"\*\*(\d+) ms\*\* for half of them", r"half within (\d+) ms, at 500 a second"),
    ],
)
def test_a_figure_that_a_page_repeats_is_that_of_the_benchmarks(page: str, told: str, source: str) -> None:
    assert figures(told, page) == figures(source)


def test_the_readme_rounds_the_rates_of_the_benchmarks() -> None:
    low, high = figures(r"from request to active \| [\d to]+ µs \| ([\d,]+) to ([\d,]+) a second")
    equal, different, rich = figures(r"equal requests, different ones, rich ones \| (\d+), (\d+), (\d+) µs")

    assert equal < different
    assert f"**{two_digits(low)} to {two_digits(high)} a second**" in README
    assert f"**{different / 1000:.1f} ms**, rich requests {rich / 1000:.1f};" in README
