"""Candidates as the text that goes out: an answer may tell of ten thousand, so it is not built of values first.

Candidates that are alike but for their providers are written by one template, filled in by the thousand. What is said of a
provider is written once, and kept until the provider changes. Nothing here needs escaping: ids, classes, traits and suffixes
are letters, digits, hyphens and underscores.
"""

from collections.abc import Collection, Mapping

import msgspec

from placement_worker.api.names import standard_first
from placement_worker.api.versions import Version
from placement_worker.core.candidates.columns import Rows
from placement_worker.core.candidates.found import Block, Candidates, Shape
from placement_worker.core.candidates.woods import Woods

_BY_PROVIDER: Version = (1, 12)
_TRAITS: Version = (1, 17)
_ALL_CLASSES: Version = (1, 27)
TREES: Version = (1, 29)
_MAPPINGS: Version = (1, 34)

_PROVIDER = '"%s"'
_encode = msgspec.json.encode


def requests_text(found: Candidates, woods: Woods, version: Version) -> str:
    return ",".join(_block_text(block, woods, version) for block in found.blocks)


def _block_text(block: Block, woods: Woods, version: Version) -> str:
    template, columns = _template(block.shape, version)
    uuids = woods.uuids
    named = [uuids[row] for row in block.rows[:, columns].ravel().tolist()]
    return ",".join([template] * len(block.rows)) % tuple(named)


def _template(shape: Shape, version: Version) -> tuple[str, list[int]]:
    """One candidate, with `%s` for each provider; and of which column each is."""
    giving = [column for column, amounts in enumerate(shape.amounts) if amounts]
    if version < _BY_PROVIDER:
        rows = [
            f'{{"resource_provider":{{"uuid":{_PROVIDER}}},"resources":{_json(shape.amounts[column])}}}'
            for column in giving
        ]
        return f'{{"allocations":[{",".join(rows)}]}}', giving
    rows = [f'{_PROVIDER}:{{"resources":{_json(shape.amounts[column])}}}' for column in giving]
    allocations = f'"allocations":{{{",".join(rows)}}}'
    if version < _MAPPINGS:
        return f"{{{allocations}}}", giving
    mapped = [column for _, columns in shape.mappings for column in columns]
    mappings = ",".join(
        f'"{suffix}":[{",".join([_PROVIDER] * len(columns))}]' for suffix, columns in shape.mappings
    )
    return f'{{{allocations},"mappings":{{{mappings}}}}}', giving + mapped


class Summaries:
    """What is said of providers, as it was written last: by row, with how often the row had changed by then."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._changes: list[int] = []
        self._woods: Woods | None = None

    def text(self, giving: Rows, woods: Woods, version: Version, classes: Collection[str]) -> str:
        """Of all providers of the trees that give something; before there were trees, of those that do."""
        if version < TREES:
            told = [_summary(row, woods, version, classes) for row in giving.tolist()]
            return ",".join(told)
        rows = woods.in_trees_of(giving).tolist()
        if woods is not self._woods or len(self._texts) < woods.rows:
            self._begin(woods)
        texts, written, changes = self._texts, self._changes, woods.changes
        for row in rows:
            if written[row] != changes[row]:
                texts[row] = _summary(row, woods, version, ())
                written[row] = changes[row]
        return ",".join([texts[row] for row in rows])

    def _begin(self, woods: Woods) -> None:
        """Of other woods nothing is known; of these there may be more rows than before."""
        if woods is not self._woods:
            self._texts, self._changes, self._woods = [], [], woods
        more = woods.rows - len(self._texts)
        self._texts += [""] * more
        self._changes += [-1] * more


def _summary(row: int, woods: Woods, version: Version, classes: Collection[str]) -> str:
    state = woods.state(row)
    said: dict[str, object] = {
        "resources": {
            resource: {
                "capacity": int(woods.stocks[resource].capacity[row]),
                "used": woods.used(row, resource),
            }
            for resource in state.inventories
            if version >= _ALL_CLASSES or resource in classes
        }
    }
    if version >= _TRAITS:
        said["traits"] = standard_first(state.traits)
    if version >= TREES:
        said["parent_provider_uuid"] = state.parent
        said["root_provider_uuid"] = state.root
    return f'"{woods.uuids[row]}":{_json(said)}'


def _json(value: Mapping[str, object]) -> str:
    return _encode(value).decode()
