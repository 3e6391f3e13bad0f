"""The reference: the AsyncAPI document is valid and whole; every message, command, endpoint, setting and metric is there and explained, and who may
name what in which message; and the codec reads every example of the pages about the bus.
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bus.codec import CODEC
from bus.message import Envelope, Kind, type_of
from bus.messages import ALL
from kit.metrics import OTHERS, VALUES_MAX, limited
from kit.settings import Section
from moor.commands import names
from moor.settings import GENERAL
from moor.worker_settings import SECTIONS
from tests.unit.examples import EXAMPLES
from tools.pages.authority_table import RULES, compared, named, rule_of, senders
from tools.pages.bus_reference import RECEIVED_BY_USERS, SENT_BY_USERS, asyncapi, page
from tools.pages.command_reference import page as command_page
from tools.pages.identity_fields import leaves_of
from tools.pages.metrics_page import ALL as METRICS
from tools.pages.placement_openapi import every_route, openapi
from tools.pages.placement_reference import page as placement_page
from tools.pages.settings_page import page as settings_page

DOCS = Path(__file__).parents[2] / "docs"
# The schema as @asyncapi/specs publishes it.
SCHEMA = Path(__file__).parents[1] / "data" / "asyncapi-3.0.0.schema.json.gz"
PAGES = "".join((DOCS / name).read_text() for name in ("bus.md", "bus-concepts.md"))
IN_PAGES = re.findall(r"```json\n(.*?)```", PAGES, re.DOTALL)
assert IN_PAGES


def test_every_field_of_every_message_of_users_is_on_the_page() -> None:
    """To write the page finds each field without a description."""
    titles = {line.removeprefix("### ").strip("`") for line in page().splitlines() if line.startswith("### ")}

    assert {type_of(kind) for kind in (*SENT_BY_USERS, *RECEIVED_BY_USERS)} <= titles


def test_the_asyncapi_document_is_valid_by_its_published_schema() -> None:
    schema = json.loads(gzip.decompress(SCHEMA.read_bytes()))

    jsonschema.validate(asyncapi(), schema)


def test_the_asyncapi_document_names_a_server() -> None:
    assert [server["protocol"] for server in asyncapi()["servers"].values()] == ["amqp"]


@pytest.mark.parametrize("example", IN_PAGES, ids=range(len(IN_PAGES)))
def test_every_example_of_the_page_is_a_message(example: str) -> None:
    assert isinstance(CODEC.decode(example.encode()), Envelope)


def test_every_reference_within_the_document_leads_somewhere() -> None:
    document = asyncapi()

    for path in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document))):
        place = document
        for step in path.split("/"):
            place = place[step]
        assert place
    assert set(document["channels"]) == {type_of(kind) for kind in ALL}
    assert {type_of(kind) for kind in (*SENT_BY_USERS, *RECEIVED_BY_USERS)} <= set(document["operations"])


def test_every_command_is_there_and_every_option_is_explained() -> None:
    text = command_page()

    missing = [name for name in names() if not re.search(rf"^### `moor {name}\b", text, re.MULTILINE)]
    assert missing == []
    assert re.findall(r"^\| `--[^|]*\|\s*\|.*$", text, re.MULTILINE) == []


def test_every_endpoint_has_its_line() -> None:
    document: dict[str, Any] = dict(openapi(every_route()))
    endpoints = [
        f"| `{method.upper()} {path}` |"
        for path, methods in document["paths"].items()
        for method in methods
        if method in ("get", "post", "put", "delete", "patch", "head")
    ]
    lines = placement_page().splitlines()

    assert len(endpoints) > 30
    assert [each for each in endpoints if sum(line.startswith(each) for line in lines) != 1] == []


WORDS_MAX = 60


def test_the_page_has_a_line_for_every_setting() -> None:
    lines = [line for line in settings_page().splitlines() if line.startswith("| `")]

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


def test_every_metric_has_a_plain_name_short_labels_and_a_meaning() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert len(names) > 40
    wrong = [
        metric
        for metric in METRICS
        if not re.fullmatch(r"moor_[a-z_]+[a-z]", metric.name)
        or metric.name.endswith("_total")
        or (
            (metric.kind == "histogram") is not metric.name.endswith("_seconds")
            and metric.name != "moor_waiting_oldest_seconds"
        )
        or not {*metric.labels}.isdisjoint({"id", "instance", "request", "host", "node"})
        or not re.fullmatch(r"[A-Z1].*\.", metric.meaning)
        or len(metric.meaning.split()) > WORDS_MAX
    ]
    assert wrong == []


def test_values_of_other_programs_are_limited() -> None:
    names = [f"CUSTOM_{number}" for number in range(VALUES_MAX + 2)]
    shown = limited(names)
    assert shown["CUSTOM_7"] == "CUSTOM_7"
    assert {shown[name] for name in names[VALUES_MAX:]} == {OTHERS}


def test_every_field_that_names_something_is_compared_by_a_rule() -> None:
    without = [(type_of(kind), path) for kind, paths in named() for path in paths if not compared(kind, path)]

    assert without == []


def test_every_rule_is_the_first_one_for_some_field() -> None:
    used = {rule_of(type_of(kind), path) for kind, paths in named() for path in paths}

    assert [rule for rule in RULES if rule not in used] == []


def test_a_message_is_sent_by_the_roles_that_its_type_names_and_by_no_other() -> None:
    """Also by rights to more than one key: they cover no message that does not name the role."""
    # What an application may say for its projects, an admin may say for all; and an operator what an admin may.
    also = {"application": ("admin", "operator"), "admin": ("operator",)}
    for kind in ALL:
        if kind.ROUTE.kind is not Kind.ANSWER:
            by = {*kind.ROUTE.by, *(more for role in kind.ROUTE.by for more in also.get(role, ()))}
            assert {*senders(kind)} == by, kind


def test_nearly_all_of_these_fields_are_in_the_examples_that_the_stories_forge() -> None:
    """Those that are not can only be reached inside of a value that the example does not have."""
    forged = {(type_of(each), leaf.path) for each in EXAMPLES for leaf in leaves_of(each)}
    missing = {(type_of(kind), path) for kind, paths in named() for path in paths} - forged

    assert len(missing) < 20, missing
    assert {path.rpartition(".")[2] for _, path in missing} <= {
        "host",
        "name",
        "id",
        "source",
        "cell",
        "provider",
        "parent",
    }
