"""Allocation candidates: which providers can give what is asked for, and how."""

from collections.abc import Collection, Iterator, Mapping

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from engine.candidates.budget import Budget
from engine.candidates.columns import Rows
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import CandidatePattern, CandidatesQuery, FoundCandidates
from engine.candidates.search import find_candidates
from engine.refusals import TooCostly
from placement_worker.api import queries
from placement_worker.api.answers import standard_first, too_costly
from placement_worker.api.queries import candidates_query, traits_named
from placement_worker.api.routing import Backend
from placement_worker.api.values import Pieces, Reply, Request, Version, pieces_of
from placement_worker.candidates import Searcher

# Writes candidates directly as bytes: an answer may have ten thousand of them, so no objects are built first.
#
# Candidates that differ only in their providers are written by one template, thousands at a time. All ids are equally long, so
# many lines of one template are an array of bytes into which the ids are copied column by column. The summary of a provider
# is written once and cached until the provider changes. Nothing needs escaping: ids, classes, traits and suffixes are
# letters, digits, hyphens and underscores.
#
# A comma begins each candidate and each summary, also the first of an answer, which `listed` takes away.


_BY_PROVIDER: Version = (1, 12)
_TRAITS: Version = (1, 17)
_ALL_CLASSES: Version = (1, 27)
TREES: Version = (1, 29)
_MAPPINGS: Version = (1, 34)

_PROVIDER = '"%b"'
_PLACE = b"%b"
_UUID_BYTES = 36
# How much longer a UUID is than its placeholder.
_UUID_MORE = _UUID_BYTES - len(_PLACE)
# To make an array of bytes costs as much as to write so many ids one by one.
_LINES_OF_ARRAY_MIN = 30
_NAMES_AT_ONCE = 5_000
# Writing one summary costs as much as so many steps.
_STEPS_PER_SUMMARY = 40
_SUMMARIES_AT_ONCE = 250
# Longer parts need not be joined to pieces of the answer, so they are not copied once more.
_SUMMARIES_OF_PART = 1_000
_encode = msgspec.json.encode


def requests_text(
    found: FoundCandidates, index: ProviderIndex, version: Version, budget: Budget
) -> Iterator[bytes]:
    """The allocation requests of an answer as JSON, each after a comma, in parts.

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
) -> Iterator[tuple[Rows, bytes, list[int]]]:
    known: dict[int, tuple[bytes, list[int]]] = {}
    for block in found.blocks:
        made = known.get(id(block.pattern))
        if made is None:
            made = known[id(block.pattern)] = _template(block.pattern, version)
            budget.spend(10 * len(made[1]))
            budget.hold(len(made[0]))
        yield block.rows, *made


def _block_text(
    rows: Rows, template: bytes, columns: list[int], index: ProviderIndex, budget: Budget
) -> bytes:
    if len(rows) < _LINES_OF_ARRAY_MIN:
        text = template * len(rows) % tuple(index.uuids[rows[:, columns].ravel()].tolist())
    else:
        text = _lines_of(rows, template, columns, index)
    budget.spend(len(rows) * len(columns))
    return text


def _lines_of(rows: Rows, template: bytes, columns: list[int], index: ProviderIndex) -> bytes:
    """The lines of a block, as an array of bytes that has one line in each row."""
    line = template.replace(_PLACE, bytes(_UUID_BYTES))
    lines = np.empty((len(rows), len(line)), dtype=np.uint8)
    lines[:] = np.frombuffer(line, dtype=np.uint8)
    ids = {column: _id_bytes(index, rows[:, column]) for column in set(columns)}
    start = 0
    for before, column in zip(template.split(_PLACE), columns, strict=False):
        start += len(before)
        lines[:, start : start + _UUID_BYTES] = ids[column]
        start += _UUID_BYTES
    return lines.tobytes()


def _id_bytes(index: ProviderIndex, rows: Rows) -> NDArray[np.uint8]:
    return index.uuids[rows].view(np.uint8).reshape(len(rows), _UUID_BYTES)


def listed(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Parts in which a comma begins each line, without the first comma."""
    yield next(filter(None, parts), b"")[1:]
    yield from parts


def _template(pattern: CandidatePattern, version: Version) -> tuple[bytes, list[int]]:
    """A comma and the JSON text of candidates that differ only in their providers, with `%b` in place of each provider's id.
    The returned list says for each `%b` which of the candidate's providers belongs there, by its number in the pattern.
    """
    giving = [column for column, amounts in enumerate(pattern.amounts) if amounts]
    if version < _BY_PROVIDER:
        rows = [
            f'{{"resource_provider":{{"uuid":{_PROVIDER}}},"resources":{_json(pattern.amounts[column])}}}'
            for column in giving
        ]
        return f',{{"allocations":[{",".join(rows)}]}}'.encode(), giving
    rows = [f'{_PROVIDER}:{{"resources":{_json(pattern.amounts[column])}}}' for column in giving]
    allocations = f'"allocations":{{{",".join(rows)}}}'
    if version < _MAPPINGS:
        return f",{{{allocations}}}".encode(), giving
    mapped = [column for _, columns in pattern.mappings for column in columns]
    mappings = ",".join(
        f'"{suffix}":[{",".join([_PROVIDER] * len(columns))}]' for suffix, columns in pattern.mappings
    )
    return f',{{{allocations},"mappings":{{{mappings}}}}}'.encode(), giving + mapped


class Summaries:
    """Writes summaries of providers, and caches those from version 1.29 on, each until its provider changes.

    Each cached summary is kept with the provider's count of changes at the time when it was written.
    """

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._changes: list[int] = []
        self._lineage: object = None

    def texts(
        self, giving: Rows, index: ProviderIndex, version: Version, classes: Collection[str], budget: Budget
    ) -> Iterator[bytes]:
        """The summaries of an answer as JSON, each after a comma, in parts.

        From 1.29 on these are all providers of the trees that give something, before that only the providers that give
        something.
        """
        if version < TREES:
            rows = giving.tolist()
        else:
            rows = index.in_trees_of(giving).tolist()
            if index.lineage is not self._lineage or len(self._texts) < index.rows:
                self._begin(index)
        part: list[bytes] = []
        # Between these groups other requests may run, and write summaries of a later state: read each cache entry only once.
        for start in range(0, len(rows), _SUMMARIES_AT_ONCE):
            some = rows[start : start + _SUMMARIES_AT_ONCE]
            written, told = (
                (len(some), [_summary(row, index, version, classes) for row in some])
                if version < TREES
                else self._kept(some, index, version)
            )
            budget.tell(sum(map(len, told)))
            budget.spend(len(some) + _STEPS_PER_SUMMARY * written)
            part += told
            if len(part) >= _SUMMARIES_OF_PART:
                yield b"".join(part)
                part.clear()
        yield b"".join(part)

    def _kept(self, rows: list[int], index: ProviderIndex, version: Version) -> tuple[int, list[bytes]]:
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
        self._texts += [b""] * more
        self._changes += [-1] * more


def _summary(row: int, index: ProviderIndex, version: Version, classes: Collection[str]) -> bytes:
    """A comma, and the summary of the provider in this row."""
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
    return b',"%b":%b' % (index.uuids[row], _encode(said))


def _json(value: Mapping[str, object]) -> str:
    return _encode(value).decode()


# The limit for clients that ask for all candidates. With eight groups and eight devices each, one host has more candidates
# than a client can read.
CANDIDATES_MAX = 100_000


class CandidatesEndpoint:
    """Answers GET /allocation_candidates. The summaries of providers are cached from one answer to the next."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self._summaries = Summaries()

    async def show(self, books: Backend, request: Request) -> Reply:
        version = request.version
        queries.CANDIDATES.at(version).query(request.query)
        query = candidates_query(request.query, version)
        query = structs.replace(query, limit=min(query.limit or CANDIDATES_MAX, CANDIDATES_MAX))
        classes = {resource: None for group in query.groups for resource in group.resources}
        replica = await books.view.caught_up()
        traits = traits_named(query.groups, *query.root_required, *query.root_forbidden)
        await books.check_names(replica, classes, traits)

        def search(index: ProviderIndex, budget: Budget) -> Pieces:
            return self._body(index, budget, query, version, classes)

        body = await self._searcher.done(replica, search)
        if isinstance(body, TooCostly):
            raise too_costly(body)
        return Reply(body=body, is_fresh=True)

    def _body(
        self,
        index: ProviderIndex,
        budget: Budget,
        query: CandidatesQuery,
        version: Version,
        classes: Collection[str],
    ) -> Pieces:
        found = find_candidates(index, query, budget=budget)

        def parts() -> Iterator[bytes]:
            yield b'{"allocation_requests":['
            yield from listed(requests_text(found, index, version, budget))
            yield b'],"provider_summaries":{'
            giving = found.giving
            if version < TREES and len(found) == query.limit != CANDIDATES_MAX:
                giving = _all_giving(found, index, query, budget)
            yield from listed(self._summaries.texts(giving, index, version, classes, budget))
            yield b"}}"

        return pieces_of(parts())


def _all_giving(found: FoundCandidates, index: ProviderIndex, query: CandidatesQuery, budget: Budget) -> Rows:
    """The providers that the summaries need before 1.29, if a limit has cut the list of candidates.

    The search runs again without the limit. Its result is cut to the trees of the candidates that remained in the list.
    """
    every = find_candidates(index, structs.replace(query, limit=CANDIDATES_MAX), budget=budget)
    giving: Rows = np.intersect1d(every.giving, index.in_trees_of(found.giving))
    return giving
