"""A misspelt trait or class is answered with the names near it; a boot that names no size is not sent."""

from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from bus.message import Message
from bus.messages.build import BuildInstance, BuildRejected
from bus.messages.planning import AskCapabilities, CapabilitiesFound, Capability
from engine.flavors import Flavor
from moor.commands import app
from moor.naming import hint_for, hints_for, near


def test_names_that_are_like_it_are_named_the_nearest_first() -> None:
    known = ["VCPU", "PCPU", "MEMORY_MB", "DISK_GB"]
    assert near("VCPUS", known) == "; near it are VCPU, PCPU"
    assert near("memory_mb", known) == "; near it are MEMORY_MB"
    assert near("BANANA", known) == ""
    assert near("VCPU", ["VCPU"]) == ""


@pytest.mark.parametrize(
    ("value", "reason", "hint"),
    [
        (
            "HW_CPU_X86_AVX22",
            "trait 'HW_CPU_X86_AVX22' is neither a standard one nor starts with CUSTOM_",
            "HW_CPU_X86_AVX2,",
        ),
        ("MEMORY", "resource class 'MEMORY' is neither a standard one nor starts with CUSTOM_", "MEMORY_MB"),
        ("MEMORY", "it asks for no resources, and an instance needs some", ""),
    ],
)
def test_a_refusal_of_an_unknown_name_is_told_with_those_near_it(value: str, reason: str, hint: str) -> None:
    refused = BuildRejected(request_id=None, field="flavor", value=value, reason=reason)
    assert hint in hint_for(refused)
    assert bool(hint_for(refused)) == bool(hint)


class Capabilities:
    """Answers which capabilities hosts have, and counts how often it was asked."""

    def __init__(self, *names: str) -> None:
        self.asked: list[Message] = []
        self._names = names

    async def ask(self, question: Message) -> Message:
        self.asked.append(question)
        return CapabilitiesFound(
            capabilities=tuple(
                Capability(name=name, kind="trait", value="", hosts=1, values=1) for name in self._names
            )
        )


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("specs", "hints"),
    [
        ({"trait:CUSTOM_GPUU": "required"}, ["no host has CUSTOM_GPUU; near it are CUSTOM_GPU"]),
        ({"trait1:CUSTOM_GPUU": "preferred:2"}, ["no host has CUSTOM_GPUU; near it are CUSTOM_GPU"]),
        ({"resources_x:CUSTOM_BANANA": "1"}, ["no host has CUSTOM_BANANA"]),
        ({"trait:CUSTOM_GPU": "required"}, []),
        ({"trait:CUSTOM_GPUU": "forbidden"}, []),
    ],
)
async def test_a_custom_name_that_no_host_has_is_told_with_those_that_some_host_has(
    specs: dict[str, str], hints: Sequence[str]
) -> None:
    build = BuildInstance(flavor=Flavor(vcpus=1, extra_specs=specs))
    assert await hints_for(Capabilities("CUSTOM_GPU", "VCPU"), build) == hints


@pytest.mark.asyncio
async def test_a_request_without_custom_names_asks_nothing() -> None:
    hosts = Capabilities()
    assert (
        await hints_for(
            hosts, BuildInstance(flavor=Flavor(vcpus=1, extra_specs={"trait:HW_CPU_X86_AVX": "required"}))
        )
        == []
    )
    assert hosts.asked == []
    await hints_for(hosts, BuildInstance(flavor=Flavor(extra_specs={"resources:CUSTOM_GOLD": "1"})))
    assert [type(each) for each in hosts.asked] == [AskCapabilities]


@pytest.mark.parametrize(
    "words", [["boot"], ["boot", "--name", "web"], ["plan"], ["boot", "--trait", "HW_CPU_X86_AVX"]]
)
def test_without_a_size_nothing_is_sent_nor_connected(words: list[str]) -> None:
    nowhere: dict[str, Any] = {"COLUMNS": "300", "MOOR_BUS_URL": "amqp://127.0.0.1:1/"}
    ended = CliRunner(env=nowhere).invoke(app, words)
    assert (ended.exit_code, "no size is named: give --flavor NAME, or --vcpus" in ended.output) == (2, True)
    sized = CliRunner(env=nowhere).invoke(app, [*words, "--disk", "1"])
    assert (sized.exit_code, "no broker" in sized.output) == (1, True), sized.output
