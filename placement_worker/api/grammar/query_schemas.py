"""The keys that a query may have at each microversion, as JSON Schema.

The values are read by queries.py. The schemas here check a value only where Placement, too, answers with an error of
JSON Schema.
"""

from collections.abc import Mapping
from itertools import accumulate

from placement_worker.api.grammar.schemas import LABEL, NAME, SUFFIX, UUID, record
from placement_worker.api.grammar.validators import Schema, Schemas, VersionedValidators
from placement_worker.api.values.versions import Version

TEXT: Schema = {"type": "string"}
_NUMBERED = "[1-9][0-9]*"
_LIMIT: Schema = {"type": "string", "pattern": "^[1-9][0-9]*$", "minLength": 1}
_POLICY: Schema = {"type": "string", "enum": ["none", "isolate"]}


def _growing(added: Mapping[Version, dict[str, Schema]], *, required: tuple[str, ...] = ()) -> Schemas:
    """The schemas of a query to which versions add keys: at each version it has that version's keys and all earlier ones."""
    keys = accumulate(added.values(), dict.__or__)
    return {since: record(each, required=required) for since, each in zip(added, keys, strict=True)}


PROVIDERS = VersionedValidators(
    _growing(
        {
            (1, 0): {"name": TEXT, "uuid": UUID},
            (1, 3): {"member_of": TEXT},
            (1, 4): {"resources": TEXT},
            (1, 14): {"in_tree": UUID},
            (1, 18): {"required": TEXT},
        }
    )
)
TRAITS = VersionedValidators({(1, 6): record({"name": TEXT, "associated": TEXT})})
USAGES = VersionedValidators(
    _growing(
        {
            (1, 9): {"project_id": LABEL, "user_id": LABEL},
            # Two values that are no consumer types: "all" is the sum of all of them, "unknown" is for consumers without a type.
            (1, 38): {"consumer_type": {**LABEL, "pattern": f"{NAME}|^all$|^unknown$"}},
        },
        required=("project_id",),
    )
)


def _grouped(suffix: str, grouped: tuple[str, ...], **others: Schema) -> Schema:
    """The schema of a query for candidates from 1.25 on. Each key in `grouped` may end in a suffix that names a group."""
    return record({"limit": _LIMIT, "group_policy": _POLICY, **others}) | {
        "patternProperties": {f"^{key}({suffix})?$": TEXT for key in grouped}
    }


_OF_A_GROUP = ("resources", "required", "member_of")
CANDIDATES = VersionedValidators(
    {
        **_growing(
            {
                (1, 10): {"resources": TEXT},
                (1, 16): {"limit": _LIMIT},
                (1, 17): {"required": TEXT},
                (1, 21): {"member_of": TEXT},
            },
            required=("resources",),
        ),
        (1, 25): _grouped(_NUMBERED, _OF_A_GROUP),
        (1, 31): _grouped(_NUMBERED, (*_OF_A_GROUP, "in_tree")),
        (1, 33): _grouped(SUFFIX, (*_OF_A_GROUP, "in_tree")),
        (1, 35): _grouped(SUFFIX, (*_OF_A_GROUP, "in_tree"), root_required=TEXT),
        (1, 36): _grouped(SUFFIX, (*_OF_A_GROUP, "in_tree"), root_required=TEXT, same_subtree=TEXT),
    }
)
