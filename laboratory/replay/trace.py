"""A trace of arrivals: a CSV file with a header, also packed by gzip.

Columns: `arrival_s`, `batch` (what is asked for together), `vcpus`, `memory_gib`, `lifetime_low_s`, `lifetime_high_s` and
`ended` (1, or 0 if the instance was still there at the end). Further ones may follow: `disk_gb`, `traits` (NAME, or !NAME for a
forbidden one, with blanks between), and `group` with its policy, as web:anti-affinity.
"""

import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import get_args
from uuid import UUID, uuid5

from msgspec import Struct

from engine.inventories import INTEGER_MAX, GroupId, GroupPolicy, ServerGroup
from engine.requests.spec import InstanceSpec
from moor.traces import FURTHER, MB_PER_GIB, NEEDED

_GROUPS = UUID("0c7cf3a4-6a08-4a0f-a8f6-6a0f1c2f5f0e")
_VALUE_SHOWN = 80


class BadTraceError(ValueError):
    """The file is no trace. The text names the line, the column and the value."""


class Arrival(Struct, frozen=True):
    """One instance of a trace. `ends_s` is None if it never ends."""

    at_s: float
    ends_s: float | None
    spec: InstanceSpec

    @property
    def vcpus(self) -> int:
        return dict(self.spec.amounts).get("VCPU", 0)


class Batch(Struct, frozen=True):
    """Instances that were asked for together."""

    at_s: float
    arrivals: tuple[Arrival, ...]


def read_trace(file: Path) -> list[Batch]:
    """The batches in the order of the file. May raise BadTraceError, or OSError."""
    with _opened(file) as lines:
        rows = csv.reader(lines)
        header = next(rows, [])
        for name in NEEDED:
            if name not in header:
                raise BadTraceError(f"{file} has no column {name}; it has {', '.join(header) or 'none'}")
        if unknown := [name for name in header if name not in (*NEEDED, *FURTHER)]:
            raise BadTraceError(
                f"{file} has a column {unknown[0]!r}; known are {', '.join((*NEEDED, *FURTHER))}"
            )
        reading = _Reading(header)
        batches = [
            Batch(arrivals[0].at_s, arrivals)
            for _, found in groupby(reading.arrivals(rows), key=lambda each: each[0])
            if (arrivals := tuple([arrival for _, arrival in found]))
        ]
    if not batches:
        raise BadTraceError(f"{file} has no arrivals")
    return batches


@contextmanager
def _opened(file: Path) -> Iterator[Iterable[str]]:
    with file.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
    opened = gzip.open if is_packed else open
    with opened(file, "rt", encoding="utf-8", newline="") as lines:
        try:
            yield lines
        except (EOFError, gzip.BadGzipFile, UnicodeDecodeError, csv.Error) as problem:
            raise BadTraceError(f"{file} cannot be read as CSV: {problem}") from problem


class _Reading:
    def __init__(self, header: list[str]) -> None:
        self._header = header
        # Most instances are of few shapes.
        self._specs: dict[tuple[str, ...], InstanceSpec] = {}
        self._policies: dict[str, GroupPolicy] = {}

    def arrivals(self, rows: Iterable[list[str]]) -> Iterator[tuple[tuple[float, str], Arrival]]:
        """Each arrival with its batch."""
        before = 0.0
        for number, row in enumerate(rows, 2):
            if not row:
                continue
            if len(row) != len(self._header):
                raise BadTraceError(f"line {number} has {len(row)} values for {len(self._header)} columns")
            values = dict(zip(self._header, row, strict=True))
            try:
                at_s, arrival = self._arrival(values)
                if at_s < before:
                    raise _wrong(
                        "arrival_s", values, f"the line before has {before:g}, and arrivals are in order"
                    )
            except ValueError as problem:
                raise BadTraceError(f"line {number}: {problem}") from None
            before = at_s
            yield (at_s, values["batch"]), arrival

    def _arrival(self, values: Mapping[str, str]) -> tuple[float, Arrival]:
        at_s = _number(values, "arrival_s")
        low, high = _number(values, "lifetime_low_s"), values["lifetime_high_s"]
        if values["ended"] not in ("0", "1"):
            raise _wrong("ended", values, "it is 1, or 0 for an instance that was still there at the end")
        if high and _number(values, "lifetime_high_s") < low:
            raise _wrong("lifetime_high_s", values, f"it is less than lifetime_low_s, {low:g}")
        lives_s = None
        if values["ended"] == "1":
            if not high:
                raise _wrong("lifetime_high_s", values, "an instance that ended has one")
            # In the middle: a trace has lifetimes in bins.
            lives_s = (low + float(high)) / 2
        kind = tuple([values.get(name, "") for name in ("vcpus", "memory_gib", *FURTHER)])
        spec = self._specs.get(kind)
        if spec is None:
            spec = self._specs[kind] = self._spec(values)
        return at_s, Arrival(at_s, None if lives_s is None else at_s + lives_s, spec)

    def _spec(self, values: Mapping[str, str]) -> InstanceSpec:
        amounts = {
            "DISK_GB": _whole(values, "disk_gb", 1) if values.get("disk_gb") else 0,
            "MEMORY_MB": _whole(values, "memory_gib", MB_PER_GIB),
            "VCPU": _whole(values, "vcpus", 1),
        }
        traits = values.get("traits", "").split()
        return InstanceSpec(
            amounts=tuple([(resource, amount) for resource, amount in amounts.items() if amount]),
            required=tuple(sorted({trait for trait in traits if not trait.startswith("!")})),
            forbidden=tuple(sorted({trait[1:] for trait in traits if trait.startswith("!")})),
            server_group=self._group(values),
        )

    def _group(self, values: Mapping[str, str]) -> ServerGroup | None:
        if not values.get("group"):
            return None
        name, _, policy = values["group"].rpartition(":")
        if not name or policy not in get_args(GroupPolicy):
            raise _wrong(
                "group", values, f"it is NAME:POLICY, with {', '.join(get_args(GroupPolicy))} as policies"
            )
        if self._policies.setdefault(name, policy) != policy:  # type: ignore[arg-type]
            raise _wrong("group", values, f"a line before gives it the policy {self._policies[name]}")
        return ServerGroup(GroupId(uuid5(_GROUPS, name)), self._policies[name])


def _number(values: Mapping[str, str], name: str) -> float:
    try:
        number = float(values[name])
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0:
        raise _wrong(name, values, "it is a number, and at least 0")
    return number


def _whole(values: Mapping[str, str], name: str, times: int) -> int:
    amount = round(_number(values, name) * times)
    if amount > INTEGER_MAX:
        raise _wrong(name, values, f"it is more than {INTEGER_MAX // times}")
    return amount


def _wrong(name: str, values: Mapping[str, str], why: str) -> ValueError:
    return ValueError(f"{name} is {values[name][:_VALUE_SHOWN]!r}: {why}")
