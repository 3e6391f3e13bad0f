"""What a real Nova said in each of its operations is read here: requests, casts to schedulers, and notifications.

tests/data/nova_rpc/operations.jsonl has what `python -m tools.real_nova.recording` recorded, without secrets.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from engine.inventories import ProviderId, ResourceAmount, Share
from nova_bridge.cloud import NotHeard, read_notification
from nova_bridge.envelope import HIDDEN, read_envelope
from nova_bridge.request_spec import NovaNames, NovaRequest
from nova_bridge.selection import ComputeNode, InstancesByService, SelectedHost, allocation_request
from tests.unit.nova.recorded import message_in
from tests.unit.nova.test_request_spec import READER

FILE = Path(__file__).parents[2] / "data" / "nova_rpc" / "operations.jsonl"
RECORDED = [json.loads(line) for line in FILE.read_text().splitlines()]
HOSTS = ("c1h1", "c1h2", "c1h3", "c1h4", "c2h1", "c2h2", "c2f1", "c2f2")
_CELL = re.compile(r'"CellMapping".*?"uuid": ?"([0-9a-f-]{36})"')
# They tell nothing of services or aggregates that a scheduler must know.
IGNORED = re.compile(r"compute\.|server_group\.|aggregate\.\w+\.start|aggregate\.cache")


def of_kind(kind: str) -> list[Any]:
    found = [each for each in RECORDED if each["kind"] == kind]
    assert found
    return [pytest.param(each, id=f"{number} {each['operation']}") for number, each in enumerate(found)]


def names() -> NovaNames:
    cells = {found for each in RECORDED for found in _CELL.findall(message_text(each))}
    hosts = {host: (host,) for host in HOSTS}
    return NovaNames(
        by_service=hosts,
        by_node=hosts,
        cells={cell: f"cell{number}" for number, cell in enumerate(sorted(cells))},
    )


def message_text(line: Mapping[str, Any]) -> str:
    return str(json.loads(line["body"])["oslo.message"])


def read(line: Mapping[str, Any]) -> NovaRequest:
    return READER.read(read_envelope(line["body"].encode()).args, names())


@pytest.mark.parametrize("line", of_kind("request"))
def test_each_request_is_read(line: Mapping[str, Any]) -> None:
    envelope = read_envelope(line["body"].encode())
    asked = read(line)

    assert envelope.method == "select_destinations"
    assert envelope.call is not None
    assert [str(each) for each in asked.instances] == message_in(line["body"].encode())["args"][
        "instance_uuids"
    ]
    flavor = message_in(line["body"].encode())["args"]["spec_obj"]["nova_object.data"]["flavor"][
        "nova_object.data"
    ]
    read_of = asked.build.flavor
    assert read_of is not None
    assert (read_of.vcpus, read_of.ram_mb, read_of.root_gb) == (
        flavor["vcpus"],
        flavor["memory_mb"],
        flavor["root_gb"],
    )


@pytest.mark.parametrize("line", of_kind("cast"))
def test_each_cast_to_all_schedulers_is_read(line: Mapping[str, Any]) -> None:
    envelope = read_envelope(line["body"].encode())
    known = InstancesByService()

    match envelope.method:
        case "update_instance_info":
            service = known.updated(envelope.args)
            assert service in HOSTS
            assert known.of(service).count
        case "delete_instance_info":
            assert known.deleted(envelope.args) in HOSTS
        case "sync_instance_info":
            assert known.synced(envelope.args) in HOSTS
        case method:
            assert method in ("update_aggregates", "delete_aggregate")
            assert envelope.call is None


@pytest.mark.parametrize("line", of_kind("notification"))
def test_each_notification_is_read_or_of_another_kind(line: Mapping[str, Any]) -> None:
    heard = read_notification(line["body"].encode())

    if isinstance(heard, NotHeard):
        assert IGNORED.match(heard.event), heard


def with_ports() -> list[tuple[NovaRequest, Any]]:
    """Each request for ports with the selections of its answer, as Nova's own scheduler has given them."""
    answers = {
        (said := message_in(each["body"].encode()))["_msg_id"]: said
        for each in RECORDED
        if each["kind"] == "answer"
    }
    found = []
    for line in RECORDED:
        if line["kind"] == "request" and (asked := read(line)).spec.groups:
            answer = answers[message_in(line["body"].encode())["_msg_id"]]
            chosen = answer["result"] or []
            found += [(asked, each["nova_object.data"]) for instance in chosen for each in instance]
    return found


def test_what_nova_reads_of_ports_in_an_answer_is_written_as_its_own_scheduler_does() -> None:
    recorded = with_ports()

    for asked, selection in recorded:
        theirs = json.loads(selection["allocation_request"])
        root = selection["compute_node_uuid"]
        share = Share(
            host=ProviderId(UUID(root)),
            amounts=tuple(
                ResourceAmount(provider=ProviderId(UUID(id_)), resource=resource, amount=amount)
                for id_, each in theirs["allocations"].items()
                for resource, amount in each["resources"].items()
            ),
        )
        providers = {
            f"port {id_}": ProviderId(UUID(served[0])) for id_, served in theirs["mappings"].items() if id_
        }
        node = ComputeNode(ProviderId(UUID(root)), "c1h1", "c1h1", UUID(selection["cell_uuid"]))

        assert allocation_request(SelectedHost(node, share, providers), asked.spec) == theirs
    assert {len(asked.spec.groups) for asked, _ in recorded} == {1, 2}
    assert any(asked.spec.same_subtree and len(asked.spec.same_subtree[0]) == 2 for asked, _ in recorded)


def test_no_secret_was_recorded() -> None:
    text = FILE.read_text()

    assert "a-token-of-nobody" not in text
    assert "guest:guest" not in text
    assert HIDDEN in text
