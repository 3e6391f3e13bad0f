"""The cells of a guest: as many as `hw:numa_nodes` says, with equal parts of its sizes, or with those that `hw:numa_cpus.N` and
`hw:numa_mem.N` name.
"""

import re

from bus.guests.asked import CPUS, MEMORY, NODES, GuestKeys
from bus.guests.cpu_numbers import read_cpu_numbers
from bus.guests.shape import GuestCell

CELLS_MAX = 16
# Of a guest with cells: their processors are numbered one by one.
CPUS_MAX = 1024

_MB = re.compile(r"[0-9]{1,10}", re.ASCII)


def read_node_count(asked: GuestKeys) -> int | None:
    """The number of cells that is asked for; None if none is."""
    flavor, image = asked.of_flavor(NODES), asked.of_image(NODES)
    if flavor is not None and image is not None:
        asked.wrong_in_image(NODES, "the flavor says hw:numa_nodes, and so the image may not")
    said = image if flavor is None else flavor
    if said is None:
        return None
    if not _MB.fullmatch(said) or not 1 <= int(said) <= CELLS_MAX:
        asked.wrong_where_said(NODES, f"a guest has 1 to {CELLS_MAX} NUMA cells")
        return None
    return int(said)


def names_cells(asked: GuestKeys) -> bool:
    return bool(asked.numbered(CPUS) or asked.numbered(MEMORY))


def read_cells(asked: GuestKeys, nodes: int, dedicated: frozenset[int]) -> tuple[GuestCell, ...]:
    """The cells of a guest whose processors with the numbers in `dedicated` are dedicated ones."""
    cpus, memory = asked.numbered(CPUS), asked.numbered(MEMORY)
    if not cpus and not memory:
        return _equal(asked, nodes, dedicated)
    numbers = [str(number) for number in range(nodes)]
    for name, said in ((CPUS, cpus), (MEMORY, memory)):
        for number, (field, value) in said.items():
            if number not in numbers:
                asked.wrong(
                    field,
                    value,
                    f"the guest has {nodes} NUMA cells, and the last one is {nodes - 1}: set hw:numa_nodes",
                )
        missing = [number for number in numbers if number not in said]
        if missing:
            field, value = next(iter((cpus or memory).values()))
            asked.wrong(
                field,
                value,
                f"hw:{name}.{missing[0]} is missing: with one cell named, each has its numa_cpus and numa_mem",
            )
    if asked.problems:
        return ()
    return _named(
        asked, [cpus[number] for number in numbers], [memory[number] for number in numbers], dedicated
    )


def _equal(asked: GuestKeys, nodes: int, dedicated: frozenset[int]) -> tuple[GuestCell, ...]:
    flavor = asked.flavor
    for name, size in (("vcpus", flavor.vcpus), ("ram_mb", flavor.ram_mb)):
        if size % nodes or (name == "vcpus" and size < nodes):
            reason = f"flavor.{name} is {size}, which {nodes} cells cannot share equally: name hw:numa_cpus.N and hw:numa_mem.N"
            asked.wrong_where_said(NODES, reason)
            return ()
    each = flavor.vcpus // nodes
    return tuple(
        [
            _cell(range(number * each, (number + 1) * each), dedicated, flavor.ram_mb // nodes)
            for number in range(nodes)
        ]
    )


def _named(
    asked: GuestKeys, cpus: list[tuple[str, str]], memory: list[tuple[str, str]], dedicated: frozenset[int]
) -> tuple[GuestCell, ...]:
    count, cells = asked.flavor.vcpus, []
    left = set(range(count))
    for (field, value), (memory_field, memory_value) in zip(cpus, memory, strict=True):
        try:
            numbers = read_cpu_numbers(value, count)
        except ValueError as wrong:
            asked.wrong(field, value, str(wrong))
            return ()
        if not numbers:
            asked.wrong(field, value, "a cell has at least one processor")
        twice = sorted(numbers - left)
        if twice:
            asked.wrong(field, value, f"processor {twice[0]} is in another cell, too")
        if not _MB.fullmatch(memory_value):
            asked.wrong(memory_field, memory_value, "a cell's memory is a whole number of MB")
            return ()
        left -= numbers
        cells.append(_cell(sorted(numbers), dedicated, int(memory_value)))
    if left:
        asked.wrong(*cpus[-1], f"processor {min(left)} of {count} is in no cell")
    total = sum(cell.memory_mb for cell in cells)
    if total != asked.flavor.ram_mb:
        asked.wrong(
            *memory[-1], f"the cells have {total} MB in all, and flavor.ram_mb is {asked.flavor.ram_mb}"
        )
    return tuple(cells)


def _cell(numbers: range | list[int], dedicated: frozenset[int], memory_mb: int) -> GuestCell:
    return GuestCell(
        tuple([number for number in numbers if number not in dedicated]),
        tuple([number for number in numbers if number in dedicated]),
        memory_mb,
    )
