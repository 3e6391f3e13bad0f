"""Questions for candidates that arrive together over the bus: one sender's hard ones do not delay another's, and count for it
alone.
"""

import pytest

from bus.message import Message
from bus.messages.candidates import AskCandidates, Candidates, CandidatesFound, RequestGroup, TooCostly
from bus.workers.handling import Answer, ReadOnly, Received
from placement_worker.candidate_handlers import candidate_handlers
from placement_worker.classes_and_traits import KnownNames
from placement_worker.core.candidates.budget import ALLOWANCE_S_MAX, SearchLimits
from placement_worker.searching import Searcher
from placement_worker.view import ProviderView
from tests.contracts.placement_orders import VOCABULARY
from tests.contracts.store_client import StoreClient
from tests.hostile_requests import hard_messages, hard_worlds, many_hosts
from tests.memory_stores.placement import MemoryPlacementStore

pytestmark = pytest.mark.asyncio


def received(ask: AskCandidates, sender: str) -> Received[Message]:
    return Received(message=ask, id="1", trace="", sender=sender, reply_to="r", attempts=1)


async def test_users_with_questions_in_one_batch_are_served_in_turns_and_each_has_its_own_allowance() -> None:
    store = MemoryPlacementStore()
    await StoreClient(store).report(*hard_worlds(), *many_hosts(1))
    hard = hard_messages()["a tight packing"]
    assert isinstance(hard, AskCandidates)
    easy = AskCandidates(groups=(RequestGroup(resources={"VCPU": 1}),), limit=1)
    spent_s = 0.0

    def cpu_s() -> float:
        nonlocal spent_s
        spent_s += ALLOWANCE_S_MAX / 50
        return spent_s

    searcher = Searcher(SearchLimits(steps_max=400_000), cpu_s=cpu_s, clock=lambda: 0.0)
    first = candidate_handlers(ProviderView(store), KnownNames(VOCABULARY, store), store, searcher)[
        AskCandidates
    ]
    assert isinstance(first, ReadOnly)

    said = await first.handle(
        [
            *(received(hard, "moor-greedy") for _ in range(5)),
            *(received(easy, "moor-other") for _ in range(3)),
        ]
    )

    verdicts = []
    for one in said:
        assert isinstance(one, Answer)
        assert isinstance(one.message, CandidatesFound)
        verdicts.append((one.question.sender, type(one.message.verdict)))
    # All of the other's come before even the first hard one is done.
    assert verdicts[:3] == [("moor-other", Candidates)] * 3
    assert verdicts[3:] == [("moor-greedy", TooCostly)] * 5
    last = said[-1]
    assert isinstance(last, Answer)
    assert isinstance(last.message, CandidatesFound)
    assert isinstance(last.message.verdict, TooCostly)
    assert last.message.verdict.user_ms
