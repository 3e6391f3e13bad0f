"""Allocation candidates: which providers can give what is asked for, and how."""

from collections.abc import Collection, Iterator

import numpy as np
from msgspec import structs

from bus.messages.candidates import TooCostly
from placement_worker.api.endpoints.candidates_text import TREES, Summaries, listed, requests_text
from placement_worker.api.grammar import query_schemas
from placement_worker.api.grammar.backend import Backend
from placement_worker.api.grammar.queries import candidates_query, traits_named
from placement_worker.api.grammar.refusals import too_costly
from placement_worker.api.values.pieces import Pieces, pieces_of
from placement_worker.api.values.request import Reply, Request
from placement_worker.api.values.versions import Version
from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.columns import Rows
from placement_worker.core.candidates.found import FoundCandidates
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import CandidatesQuery
from placement_worker.core.candidates.search import find_candidates
from placement_worker.searching import Searcher

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
        query_schemas.CANDIDATES.at(version).query(request.query)
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
