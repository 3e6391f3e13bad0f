"""Our candidates and those of the real openstack-placement, for the same providers and questions.

The real one is asked at its newest version; a question about providers of one tree is asked at the last version without
trees. Cases in which the real one is wrong are left out:
- Without `group_policy=none` it adds up amounts in objects that candidates share. The numbers are wrong where the group
  without a suffix and one with a suffix ask for the same class.
- If only sharing providers serve the group without a suffix, it keeps them for one of the trees that they share with,
  chosen by chance. With other groups it therefore loses candidates.
- It fails where a child shares with another tree and its own tree has nothing to offer.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine.candidates.query import UNSUFFIXED, CandidatesQuery, Group
from engine.candidates.search import find_candidates
from engine.inventories import ProviderId, ProviderState
from tests.conformance.worlds_asked import Question, World
from tests.properties.bounds import BOUNDED
from tests.properties.random_forests import SHARES, TRAITS, queries, random_forests
from tests.properties.reference_candidates import Told
from tests.properties.test_candidates_properties import index_of, told_of

NEWEST, FLAT = "1.39", "1.28"
WORLDS, QUESTIONS = 12, 12
# At least this many of a few hundred questions must be answered, and this many must have candidates to compare.
ANSWERED_MIN, FOUND_MIN = 60, 20


class Upstream:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.seen: Counter[str] = Counter()

    def ask(
        self,
        states: Sequence[ProviderState],
        questions: Sequence[Question],
        traits: tuple[str, ...] = TRAITS,
    ) -> list[Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(
            msgspec.json.encode(World(traits, tuple(states), tuple(questions))).decode() + "\n"
        )
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the real placement has ended: its output is above"
        answers: list[Any] = msgspec.json.decode(line)
        return answers


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    command = [sys.executable, "-m", "tests.conformance.upstream_worlds"]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Upstream(process)
        process.terminate()


# Hypothesis does not shrink examples: each takes the real one a tenth of a second.
@settings(BOUNDED, max_examples=WORLDS, phases=[Phase.generate])
@given(random_forests(), st.lists(queries(), min_size=QUESTIONS, max_size=QUESTIONS))
def _compare(upstream: Upstream, states: list[ProviderState], asked: list[CandidatesQuery]) -> None:
    asked = [askable(query) for query in asked if not is_beyond_upstream(query)]
    answers = upstream.ask(states, [question(query) for query in asked])
    for query, answer in zip(asked, answers, strict=True):
        upstream.seen["asked"] += 1
        if answer is None:
            continue
        upstream.seen["answered"] += 1
        upstream.seen["found"] += bool(answer)
        index = index_of(states)
        ours = set(told_of(index, find_candidates(index, query)))
        theirs = set(map(told, answer))
        if query.one_provider_per_tree:
            # That version has no mappings in its answers.
            ours = {(amounts, frozenset()) for amounts, _ in ours}
        assert theirs <= ours, query
        assert all(may_be_lost(query, states, candidate) for candidate in ours - theirs), query


# The real one is slow, and slower on a busy machine. The property tests compare ours with a slow rule each time.
@pytest.mark.timeout(300)
def test_the_real_placement_finds_the_same_candidates(upstream: Upstream) -> None:
    _compare(upstream)

    assert upstream.seen["answered"] >= ANSWERED_MIN, upstream.seen
    assert upstream.seen["found"] >= FOUND_MIN, upstream.seen


def told(request: Mapping[str, Any]) -> Told:
    return (
        frozenset(
            (ProviderId(UUID(provider)), resource, amount)
            for provider, given in request["allocations"].items()
            for resource, amount in given["resources"].items()
        ),
        frozenset(
            (suffix, frozenset(ProviderId(UUID(provider)) for provider in providers))
            for suffix, providers in request.get("mappings", {}).items()
        ),
    )


def may_be_lost(query: CandidatesQuery, states: Sequence[ProviderState], candidate: Told) -> bool:
    """The group without a suffix takes only from sharing providers, and there are other groups."""
    if len({bool(group.suffix) for group in query.groups}) == 1:
        return False
    sharing = {state.id for state in states if SHARES in state.traits}
    amounts, mappings = candidate
    if not mappings:
        return any(provider in sharing for provider, _, _ in amounts)
    return dict(mappings)[UNSUFFIXED] <= sharing


def is_beyond_upstream(query: CandidatesQuery) -> bool:
    if not all(any(_of_group(group)) for group in query.groups):
        # A group without any field does not exist for upstream.
        return True
    if query.group_policy == "none":
        return False
    unsuffixed = {resource for group in query.groups if not group.suffix for resource in group.resources}
    return any(unsuffixed & set(group.resources) for group in query.groups if group.suffix)


def askable(query: CandidatesQuery) -> CandidatesQuery:
    """The old version has fewer fields: a question that uses newer ones goes to the new version."""
    is_new = bool(query.same_subtree or query.root_required or query.root_forbidden) or any(
        group.in_tree or group.forbidden_aggregates or any(len(names) > 1 for names in group.required)
        for group in query.groups
    )
    return structs.replace(query, one_provider_per_tree=query.one_provider_per_tree and not is_new)


def question(query: CandidatesQuery) -> Question:
    parts = [part for group in query.groups for part in _of_group(group)]
    if query.group_policy is not None:
        parts.append(f"group_policy={query.group_policy}")
    parts += [f"same_subtree={','.join(suffixes)}" for suffixes in query.same_subtree]
    of_root = [*query.root_required, *(f"!{trait}" for trait in query.root_forbidden)]
    if of_root:
        parts.append(f"root_required={','.join(of_root)}")
    return Question(FLAT if query.one_provider_per_tree else NEWEST, "&".join(parts))


def _of_group(group: Group) -> Iterator[str]:
    suffix = group.suffix
    if group.resources:
        yield f"resources{suffix}=" + ",".join(f"{name}:{amount}" for name, amount in group.resources.items())
    plain = [names[0] for names in group.required if len(names) == 1]
    traits = [*plain, *(f"!{trait}" for trait in group.forbidden)]
    if traits:
        yield f"required{suffix}={','.join(traits)}"
    for names in group.required:
        if len(names) > 1:
            yield f"required{suffix}=in:{','.join(names)}"
    for aggregates in group.member_of:
        yield f"member_of{suffix}=in:{','.join(map(str, aggregates))}"
    if group.forbidden_aggregates:
        yield f"member_of{suffix}=!in:{','.join(map(str, group.forbidden_aggregates))}"
    if group.in_tree is not None:
        yield f"in_tree{suffix}={group.in_tree}"
