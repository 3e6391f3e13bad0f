"""Plans that broke a promise once. They are kept as values: their seeds draw something else by now."""

import gzip
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Union

import msgspec
from msgspec import Struct, structs

from tests.simulation.drawing import draw
from tests.simulation.faults import Fault
from tests.simulation.plan import Plan

# A line for each, its reason first.
FILE = Path(__file__).with_name("kept_plans.jsonl.gz")
_ANY_FAULT: Any = Union[tuple(Fault.__subclasses__())]  # noqa: UP007 - the kinds of faults are not listed anywhere else
_READABLE: Any = msgspec.defstruct(
    "Readable", [("faults", tuple[_ANY_FAULT, ...], ())], bases=(Plan,), frozen=True
)


class KeptPlan(Struct, frozen=True):
    why: str
    plan: Plan


class _Line(Struct, frozen=True):
    why: str
    plan: _READABLE


@cache
def kept() -> tuple[KeptPlan, ...]:
    lines = (
        msgspec.json.decode(line, type=_Line) for line in gzip.decompress(FILE.read_bytes()).splitlines()
    )
    return tuple([KeptPlan(each.why, _as_drawn(Plan(**structs.asdict(each.plan)))) for each in lines])


def _as_drawn(plan: Plan) -> Plan:
    """Settings with several values are tuples."""
    settings = {
        name: tuple(value) if isinstance(value, list) else value for name, value in plan.settings.items()
    }
    return structs.replace(plan, settings=settings)


def keep(*more: KeptPlan) -> None:
    lines = [msgspec.json.encode(each) for each in (*kept(), *more)]
    FILE.write_bytes(gzip.compress(b"\n".join(lines), mtime=0))
    kept.cache_clear()


def names() -> Iterator[str]:
    return (f"kept {number}" for number in range(1, len(kept()) + 1))


def plan_of(which: int | str) -> Plan:
    """That of a seed, or the kept one of this name."""
    return draw(which) if isinstance(which, int) else kept()[int(which.removeprefix("kept ")) - 1].plan
