"""Asks placement which providers could satisfy a request, for programs without a picture of their own.

A claim can be built from an answer. The answer reserves nothing: only the claim decides.
"""

from typing import Annotated, Literal

from msgspec import Meta

from bus.message import Integer, Message, ProviderId, StrictMessage
from bus.messages.administration import Aggregates, Traits, UnknownClass, UnknownTrait
from bus.messages.placement import NotAllowed, Positive, ResourceClass, Share, Trait, Value, Variant

CANDIDATES_MAX = 1_000

Suffix = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{0,64}\Z")]
AnyOfTraits = Annotated[tuple[Annotated[Traits, Meta(min_length=1)], ...], Meta(max_length=400)]
AnyOfAggregates = Annotated[tuple[Annotated[Aggregates, Meta(min_length=1)], ...], Meta(max_length=400)]
Weight = Annotated[float, Meta(ge=-1e9, le=1e9)]


class RequestGroup(Value, frozen=True):
    """One group of a request. Each inner list of `required` and `member_of` needs only one of its elements.

    The group without a suffix may take each class from another provider of one tree, or from a provider that shares
    with that tree. A group with a suffix takes everything from one provider. `preferred` gives weights to optional
    traits: candidates with a higher sum come first.
    """

    suffix: Suffix = ""
    resources: Annotated[dict[ResourceClass, Positive], Meta(max_length=200)] = {}
    required: AnyOfTraits = ()
    forbidden: Traits = ()
    preferred: Annotated[dict[Trait, Weight], Meta(max_length=400)] = {}
    member_of: AnyOfAggregates = ()
    forbidden_aggregates: Aggregates = ()
    in_tree: ProviderId | None = None


class AskCandidates(StrictMessage, frozen=True, tag="candidates"):
    """Asks which providers could satisfy all groups together. At most `limit` candidates are found. If they do not fit
    into one message, the answer is `TooCostly`.

    With `isolate`, no two groups with suffixes use the same provider. Each list in `same_subtree` names groups by their
    suffixes: one of the providers for these groups must be an ancestor of all the others. `root_required` and
    `root_forbidden` are traits that the root of the tree must have, or must not have.
    """

    groups: Annotated[tuple[RequestGroup, ...], Meta(min_length=1, max_length=64)]
    group_policy: Literal["none", "isolate"] | None = None
    same_subtree: Annotated[
        tuple[Annotated[tuple[Suffix, ...], Meta(max_length=64)], ...], Meta(max_length=64)
    ] = ()
    root_required: Traits = ()
    root_forbidden: Traits = ()
    limit: Annotated[int, Meta(ge=1, le=CANDIDATES_MAX)] = 100


class Candidate(Value, frozen=True):
    """One way to satisfy the request.

    `share` can be claimed as it is: it has the current shapes. `mappings` has the providers that each group uses.
    `preference` is the sum of the weights of the preferred traits that are met.
    """

    share: Share
    mappings: dict[str, tuple[ProviderId, ...]]
    preference: float = 0.0


class Candidates(Variant, frozen=True, tag="candidates"):
    """The candidates that were found: all of them, or as many as the question's limit."""

    candidates: tuple[Candidate, ...]


class TooCostly(Variant, frozen=True, tag="too_costly"):
    """The search was cut off: it had used `spent` units of `what`, and may use only `budget`.

    Whether there are candidates is unknown. A question with fewer groups, or for fewer candidates, may succeed.
    """

    what: Literal["steps", "bytes", "answer_bytes"]
    spent: Integer
    budget: Integer


class CandidatesFound(Message, frozen=True, tag="candidates.found"):
    verdict: Candidates | UnknownClass | UnknownTrait | NotAllowed | TooCostly
