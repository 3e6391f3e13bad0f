"""Who could give what is asked for, and how: asked of placement by anyone who does not keep a picture of its own.

An answer is what a claim is made of. That it was given holds nothing: only the claim decides.
"""

from typing import Annotated, ClassVar, Literal
from uuid import UUID

from msgspec import Meta

from bus.message import AggregateId, Message, ProviderId
from bus.messages.administration import UnknownClass, UnknownTrait
from bus.messages.placement import NotAllowed, Positive, ResourceClass, Share, Trait, Value, Variant

CANDIDATES_MAX = 100_000

Suffix = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{0,64}\Z")]
Traits = Annotated[tuple[Trait, ...], Meta(max_length=400)]
AnyOfTraits = Annotated[tuple[Annotated[Traits, Meta(min_length=1)], ...], Meta(max_length=400)]
Aggregates = Annotated[tuple[AggregateId, ...], Meta(max_length=400)]
AnyOfAggregates = Annotated[tuple[Annotated[Aggregates, Meta(min_length=1)], ...], Meta(max_length=400)]
Weight = Annotated[float, Meta(ge=-1e9, le=1e9)]


class RequestGroup(Value, frozen=True):
    """What one group asks for; of each list in `required` and in `member_of` any one will do.

    The group without a suffix may take each class from another provider of one tree, or from one that shares with that
    tree. A group with a suffix takes everything from one provider. `preferred` says what a trait is worth that need not
    be there: those that are worth more come first.
    """

    suffix: Suffix = ""
    resources: Annotated[dict[ResourceClass, Positive], Meta(max_length=200)] = {}
    required: AnyOfTraits = ()
    forbidden: Traits = ()
    preferred: Annotated[dict[Trait, Weight], Meta(max_length=400)] = {}
    member_of: AnyOfAggregates = ()
    forbidden_aggregates: Aggregates = ()
    in_tree: ProviderId | None = None


class AskCandidates(Message, frozen=True, tag="candidates"):
    """Who could give all of this together? At most `limit` answers, told a page at a time.

    With `isolate` no two groups with suffixes are given the same provider. What is given to the groups of each list in
    `same_subtree` stands under one of them. `root_required` and `root_forbidden` are about the root of the tree.
    """

    IS_STRICT: ClassVar[bool] = True

    groups: Annotated[tuple[RequestGroup, ...], Meta(min_length=1, max_length=64)]
    group_policy: Literal["none", "isolate"] | None = None
    same_subtree: Annotated[
        tuple[Annotated[tuple[Suffix, ...], Meta(max_length=64)], ...], Meta(max_length=64)
    ] = ()
    root_required: Traits = ()
    root_forbidden: Traits = ()
    limit: Annotated[int, Meta(ge=1, le=CANDIDATES_MAX)] = 1_000


class AskMoreCandidates(Message, frozen=True, tag="candidates.more"):
    """The next page of an answer, all of which is of the moment when it was first asked for."""

    IS_STRICT: ClassVar[bool] = True

    answer: UUID
    page: Annotated[int, Meta(ge=1, le=CANDIDATES_MAX)]


class NextPage(Value, frozen=True):
    """Where an answer goes on: to be asked for by `candidates.more`."""

    answer: UUID
    page: int


class Candidate(Value, frozen=True):
    """A share as a claim names it, with the shapes as they are; by group, who gives to it; what the preferred traits that
    are met are worth.
    """

    share: Share
    mappings: dict[str, tuple[ProviderId, ...]]
    preference: float = 0.0


class Candidates(Variant, frozen=True, tag="candidates"):
    """Some of them; `next` leads to more of the same answer, and is null at its end."""

    candidates: tuple[Candidate, ...]
    next: NextPage | None = None


class StartAgain(Variant, frozen=True, tag="start_again"):
    """That answer is not kept any more: ask anew."""


class TooCostly(Variant, frozen=True, tag="too_costly"):
    """The search was cut: it had come to `spent` of what is counted, and `budget` is the most. Nothing is known of whether
    there are candidates, so a smaller question, or a smaller limit, may have an answer.
    """

    what: Literal["steps", "bytes", "answer_bytes"]
    spent: int
    budget: int


class CandidatesFound(Message, frozen=True, tag="candidates.found"):
    verdict: Candidates | StartAgain | UnknownClass | UnknownTrait | NotAllowed | TooCostly
