"""Writes candidates directly as text: an answer may have ten thousand of them, so no objects are built first.

Candidates that differ only in their providers are written by one template, thousands at a time. The summary of a provider
is written once and cached until the provider changes. Nothing needs escaping: ids, classes, traits and suffixes are
letters, digits, hyphens and underscores.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from placement_worker.api.grammar.names import standard_first
from placement_worker.api.values.versions import Version
from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.columns import Rows
from placement_worker.core.candidates.found import CandidatePattern, FoundCandidates
from placement_worker.core.candidates.provider_index import ProviderIndex

_BY_PROVIDER: Version = (1, 12)
_TRAITS: Version = (1, 17)
_ALL_CLASSES: Version = (1, 27)
TREES: Version = (1, 29)
_MAPPINGS: Version = (1, 34)

_PROVIDER = '"%s"'
# How much longer a UUID is than its placeholder.
_UUID_MORE = 34
_NAMES_AT_ONCE = 5_000
# Writing one summary costs as much as so many steps.
_STEPS_PER_SUMMARY = 40
_SUMMARIES_AT_ONCE = 250
_encode = msgspec.json.encode


def requests_text(
    found: FoundCandidates, index: ProviderIndex, version: Version, budget: Budget
) -> Iterator[str]:
    """The allocation requests of an answer as JSON, in parts which the caller joins with commas.

    Before the first part is written, the length of all parts is counted against the limit of the answer's length
    (`budget`).
    """
    blocks = list(_templates(found, version, budget))
    budget.tell(
        sum(len(rows) * (len(template) + _UUID_MORE * len(columns)) for rows, template, columns in blocks)
    )
    for rows, template, columns in blocks:
        lines = max(1, _NAMES_AT_ONCE // max(1, len(columns)))
        for start in range(0, len(rows), lines):
            yield _block_text(rows[start : start + lines], template, columns, index, budget)


def _templates(
    found: FoundCandidates, version: Version, budget: Budget
) -> Iterator[tuple[Rows, str, list[int]]]:
    known: dict[int, tuple[str, list[int]]] = {}
    for block in found.blocks:
        made = known.get(id(block.pattern))
        if made is None:
            made = known[id(block.pattern)] = _template(block.pattern, version)
            budget.spend(10 * len(made[1]))
            budget.hold(len(made[0]))
        yield block.rows, *made


def _block_text(rows: Rows, template: str, columns: list[int], index: ProviderIndex, budget: Budget) -> str:
    uuids = index.uuids
    named = [uuids[row] for row in rows[:, columns].ravel().tolist()]
    text = ",".join([template] * len(rows)) % tuple(named)
    budget.spend(len(named))
    return text


def _template(pattern: CandidatePattern, version: Version) -> tuple[str, list[int]]:
    """The JSON text of candidates that differ only in their providers, with `%s` in place of each provider's id. The
    returned list says for each `%s` which of the candidate's providers belongs there, by its number in the pattern.
    """
    giving = [column for column, amounts in enumerate(pattern.amounts) if amounts]
    if version < _BY_PROVIDER:
        rows = [
            f'{{"resource_provider":{{"uuid":{_PROVIDER}}},"resources":{_json(pattern.amounts[column])}}}'
            for column in giving
        ]
        return f'{{"allocations":[{",".join(rows)}]}}', giving
    rows = [f'{_PROVIDER}:{{"resources":{_json(pattern.amounts[column])}}}' for column in giving]
    allocations = f'"allocations":{{{",".join(rows)}}}'
    if version < _MAPPINGS:
        return f"{{{allocations}}}", giving
    mapped = [column for _, columns in pattern.mappings for column in columns]
    mappings = ",".join(
        f'"{suffix}":[{",".join([_PROVIDER] * len(columns))}]' for suffix, columns in pattern.mappings
    )
    return f'{{{allocations},"mappings":{{{mappings}}}}}', giving + mapped


class Summaries:
    """Writes summaries of providers, and caches those from version 1.29 on, each until its provider changes.

    Each cached summary is kept with the provider's count of changes at the time when it was written.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._changes: list[int] = []
        self._lineage: object = None

    def texts(
        self, giving: Rows, index: ProviderIndex, version: Version, classes: Collection[str], budget: Budget
    ) -> Iterator[str]:
        """The summaries of an answer as JSON, in parts which the caller joins with commas.

        From 1.29 on these are all providers of the trees that give something, before that only the providers that give
        something.
        """
        if version < TREES:
            rows = giving.tolist()
        else:
            rows = index.in_trees_of(giving).tolist()
            if index.lineage is not self._lineage or len(self._texts) < index.rows:
                self._begin(index)
        # Between parts other requests may run, and write summaries of a later state: read each cache entry only once.
        for start in range(0, len(rows), _SUMMARIES_AT_ONCE):
            part = rows[start : start + _SUMMARIES_AT_ONCE]
            written, told = (
                (len(part), [_summary(row, index, version, classes) for row in part])
                if version < TREES
                else self._kept(part, index, version)
            )
            text = ",".join(told)
            budget.tell(len(text))
            budget.spend(len(part) + _STEPS_PER_SUMMARY * written)
            yield text

    def _kept(self, rows: list[int], index: ProviderIndex, version: Version) -> tuple[int, list[str]]:
        """The number of summaries that had to be written anew, and the summaries of all these rows.

        Those of rows that have not changed come from the cache.
        """
        texts, written, changes = self._texts, self._changes, index.changes
        changed = [row for row in rows if written[row] != changes[row]]
        for row in changed:
            texts[row] = _summary(row, index, version, ())
            written[row] = changes[row]
        return len(changed), [texts[row] for row in rows]

    def _begin(self, index: ProviderIndex) -> None:
        """Make room in the cache for new providers.

        It is cleared first if this index is unrelated to the one that the cached summaries were written from.
        """
        if index.lineage is not self._lineage:
            self._texts, self._changes, self._lineage = [], [], index.lineage
        more = index.rows - len(self._texts)
        self._texts += [""] * more
        self._changes += [-1] * more


def _summary(row: int, index: ProviderIndex, version: Version, classes: Collection[str]) -> str:
    state = index.state(row)
    said: dict[str, object] = {
        "resources": {
            resource: {
                "capacity": int(index.stocks[resource].capacity[row]),
                "used": index.used(row, resource),
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
    return f'"{index.uuids[row]}":{_json(said)}'


def _json(value: Mapping[str, object]) -> str:
    return _encode(value).decode()
