"""The keys that a query may have at each microversion, as JSON Schema.

queries.py reads their values. This file has only what is refused with the words of a schema.
"""

from placement_worker.api.schemas import LABEL, NAME, SUFFIX, UUID, Schema, record

TEXT: Schema = {"type": "string"}
_NUMBERED = "[1-9][0-9]*"

NOTHING = record({})

PROVIDERS_1_0 = record({"name": TEXT, "uuid": UUID})
PROVIDERS_1_3 = record({"name": TEXT, "uuid": UUID, "member_of": TEXT})
PROVIDERS_1_4 = record({"name": TEXT, "uuid": UUID, "member_of": TEXT, "resources": TEXT})
PROVIDERS_1_14 = record({"name": TEXT, "uuid": UUID, "member_of": TEXT, "resources": TEXT, "in_tree": UUID})
PROVIDERS_1_18 = record(
    {"name": TEXT, "uuid": UUID, "member_of": TEXT, "resources": TEXT, "in_tree": UUID, "required": TEXT}
)

TRAITS = record({"name": TEXT, "associated": TEXT})

USAGES_1_9 = record({"project_id": LABEL, "user_id": LABEL}, required=("project_id",))
USAGES_1_38 = record(
    {
        "project_id": LABEL,
        "user_id": LABEL,
        # Two values that are no consumer types: "all" is the sum of all of them, "unknown" is for consumers without a type.
        "consumer_type": {**LABEL, "pattern": f"{NAME}|^all$|^unknown$"},
    },
    required=("project_id",),
)

_LIMIT: Schema = {"type": "string", "pattern": "^[1-9][0-9]*$", "minLength": 1}
_POLICY: Schema = {"type": "string", "enum": ["none", "isolate"]}

CANDIDATES_1_10 = record({"resources": TEXT}, required=("resources",))
CANDIDATES_1_16 = record({"resources": TEXT, "limit": _LIMIT}, required=("resources",))
CANDIDATES_1_17 = record({"resources": TEXT, "limit": _LIMIT, "required": TEXT}, required=("resources",))
CANDIDATES_1_21 = record(
    {"resources": TEXT, "limit": _LIMIT, "required": TEXT, "member_of": TEXT}, required=("resources",)
)


def _grouped(suffix: str, grouped: tuple[str, ...], **others: Schema) -> Schema:
    """Each key in `grouped` may have a suffix."""
    return record({"limit": _LIMIT, "group_policy": _POLICY, **others}) | {
        "patternProperties": {f"^{key}({suffix})?$": TEXT for key in grouped}
    }


_OF_A_GROUP = ("resources", "required", "member_of")
CANDIDATES_1_25 = _grouped(_NUMBERED, _OF_A_GROUP)
CANDIDATES_1_31 = _grouped(_NUMBERED, (*_OF_A_GROUP, "in_tree"))
CANDIDATES_1_33 = _grouped(SUFFIX, (*_OF_A_GROUP, "in_tree"))
CANDIDATES_1_35 = _grouped(SUFFIX, (*_OF_A_GROUP, "in_tree"), root_required=TEXT)
CANDIDATES_1_36 = _grouped(SUFFIX, (*_OF_A_GROUP, "in_tree"), root_required=TEXT, same_subtree=TEXT)
