"""The AsyncAPI document is valid and whole, and the reference has every message; the codec reads every example of the pages about the bus."""

import gzip
import json
import re
from pathlib import Path

import jsonschema
import pytest

from bus.codec import CODEC
from bus.message import Envelope, type_of
from bus.messages import ALL
from tools.pages.bus_reference import RECEIVED_BY_USERS, SENT_BY_USERS, asyncapi, page

DOCS = Path(__file__).parents[2] / "docs"
# The schema as @asyncapi/specs publishes it.
SCHEMA = Path(__file__).parents[1] / "data" / "asyncapi-3.0.0.schema.json.gz"
PAGES = "".join((DOCS / name).read_text() for name in ("bus.md", "bus-concepts.md"))
EXAMPLES = re.findall(r"```json\n(.*?)```", PAGES, re.DOTALL)
assert EXAMPLES


def test_every_field_of_every_message_of_users_is_on_the_page() -> None:
    """To write the page finds each field without a description."""
    titles = {line.removeprefix("### ").strip("`") for line in page().splitlines() if line.startswith("### ")}

    assert {type_of(kind) for kind in (*SENT_BY_USERS, *RECEIVED_BY_USERS)} <= titles


def test_the_asyncapi_document_is_valid_by_its_published_schema() -> None:
    schema = json.loads(gzip.decompress(SCHEMA.read_bytes()))

    jsonschema.validate(asyncapi(), schema)


def test_the_asyncapi_document_names_a_server() -> None:
    assert [server["protocol"] for server in asyncapi()["servers"].values()] == ["amqp"]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
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
