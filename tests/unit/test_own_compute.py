"""docs/examples/own_compute.py keeps the rules for orders to hosts: repeated, late and overtaken ones, and what it does not have."""

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytestmark = pytest.mark.asyncio

FILE = Path(__file__).parents[2] / "docs" / "examples" / "own_compute.py"
Message = dict[str, Any]


def example() -> Any:
    spec = importlib.util.spec_from_file_location("own_compute", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest_asyncio.fixture
async def compute() -> AsyncIterator[Any]:
    made = example().Compute("harbour", ["shed-1", "shed-2"])
    yield made
    await made.end()


def order(compute: Any, kind: str, attempt: int = 1, host: int = 0, **fields: Any) -> Message:
    about = {"host": [*compute.hosts][host], "instance": "i-1", "attempt": attempt}
    return {"type": kind, **about, **fields}


async def test_a_repeated_order_to_build_is_answered_again_and_builds_nothing(compute: Any) -> None:
    first = await compute.obey(order(compute, "spawn"))
    again = await compute.obey(order(compute, "spawn"))

    assert first == again == {"type": "spawned", "number": 0}
    assert compute.on(next(iter(compute.hosts))) == [("i-1", 1)]


async def test_a_destroyed_attempt_never_runs(compute: Any) -> None:
    assert await compute.obey(order(compute, "destroy")) == {"type": "destroyed"}

    assert await compute.obey(order(compute, "spawn")) == {"type": "destroyed"}
    assert compute.on(next(iter(compute.hosts))) == []


async def test_of_orders_that_overtake_each_other_the_later_number_counts(compute: Any) -> None:
    await compute.obey(order(compute, "spawn"))
    started = await compute.obey(order(compute, "start", number=7))
    late = await compute.obey(order(compute, "stop", number=7))
    rebuilt = await compute.obey(order(compute, "respawn", number=8))
    older = await compute.obey(order(compute, "stop", number=7))
    stopped = await compute.obey(order(compute, "stop", number=9))

    assert started == late == {"type": "spawned", "number": 7}
    assert rebuilt == older == {"type": "redeployed", "number": 8}
    assert stopped == {"type": "stopped", "number": 9, "saved": ""}


async def test_a_stopped_instance_is_saved_by_a_second_order_of_the_same_number(compute: Any) -> None:
    await compute.obey(order(compute, "spawn"))
    await compute.obey(order(compute, "stop", number=3))

    saved = await compute.obey(order(compute, "stop", number=3, save_as="image-1"))

    assert saved == {"type": "stopped", "number": 3, "saved": "image-1"}


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("stop", {"type": "stopped", "number": 4, "failure": "the host has nothing of it"}),
        ("start", {"type": "spawn.failed", "number": 4, "reason": "the host has nothing of it"}),
        (
            "respawn",
            {
                "type": "redeployed",
                "number": 4,
                "failure": "the host has nothing of it",
                "is_active": False,
            },
        ),
    ],
)
async def test_what_a_host_does_not_have_it_refuses(compute: Any, kind: str, answer: Message) -> None:
    assert await compute.obey(order(compute, kind, number=4)) == answer


async def test_an_instance_is_received_only_from_a_source_that_has_it(compute: Any) -> None:
    source = {"source": next(iter(compute.hosts)), "source_attempt": 1}
    await compute.obey(order(compute, "spawn"))
    too_early = await compute.obey(order(compute, "receive", attempt=2, host=1, **source))
    assert too_early["type"] == "spawn.failed"

    live = await compute.obey(order(compute, "receive", attempt=2, host=1, live=True, **source))

    assert live == {"type": "spawned", "number": 0}
    assert (await compute.obey(order(compute, "spawn")))["type"] == "stopped"


async def test_what_it_cannot_read_is_an_error_for_its_caller(compute: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown order 'explode'"):
        await compute.obey(order(compute, "explode"))
    with pytest.raises(KeyError):
        await compute.obey({"type": "spawn"})
