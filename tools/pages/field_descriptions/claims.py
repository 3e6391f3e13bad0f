"""Descriptions of the fields of shares, reports and candidates."""

_INVENTORY = {
    "total": "the total amount",
    "reserved": "the part of the total that may not be claimed",
    "min_unit": "the smallest amount of one claim",
    "max_unit": "the largest amount of one claim",
    "step_size": "a claim's amount must be a multiple of it",
    "allocation_ratio": "the capacity is (total - reserved) times this ratio",
}
CLAIMS: dict[str, dict[str, str]] = {
    "ReportInventory": {
        "cell": "the host's cell; your broker user must belong to this cell",
        "root": "the id of the host's root provider",
        "providers": "the providers of its tree that this report updates",
        "removed": "ids of providers that no longer exist",
        "epoch": "the reporter's epoch, where several reporters share the work; placement refuses an older one",
        "sequence": "orders your reports: placement refuses one that is older than the last accepted one. 0: accepted in the "
        "order of arrival",
        "whole": "these are all providers that you have: others that were reported are removed",
        "foreign": "for a tree that another service writes: `leave` it, or `take` it over. Empty: not checked",
    },
    "AskHostShape": {
        "cell": "the host's cell; your broker user must belong to this cell",
        "root": "the id of the host's root provider",
        "after": "the page starts after this consumer",
    },
    "HostShapeFound": {
        "root": "the tree's root provider",
        "providers": "all providers of the tree; only on the first page. Empty: your cell has no such tree",
        "holders": "the consumers that hold something of the tree",
        "next": "pass this as `after` to get the next page; none on the last page",
    },
    "HostHolder": {
        "consumer": "the consumer's id: that of an instance, or of a move or cleanup beside it",
        "generation": "the consumer's generation as placement has it, or as you read it",
        "amounts": "what it holds of the tree",
    },
    "ReshapeHost": {
        "cell": "the host's cell; your broker user must belong to this cell",
        "root": "the id of the host's root provider",
        "shape": "the tree's shape as you read it in `host.shape.found`",
        "providers": "all providers of the tree from now on",
        "sequence": "orders your reports, this one among them",
        "moved": "the consumers that get something of other providers, each with all that it holds of the tree afterwards",
    },
    "HostReshaped": {
        "root": "the tree's root provider",
        "verdict": "`accepted`, or why nothing has changed: `outdated`, `in_use`, `does_not_fit`, `consumer_moved`, `shape_moved` or "
        "`not_allowed`, each with its own fields",
    },
    "ReportedProvider": {
        "id": "a uuid that never changes",
        "name": "a unique name",
        "parent": "the id of the parent provider; none for the root",
        "inventories": "by resource class; classes not named are removed. Left out: unchanged",
        "traits": "traits not named are removed, unless an operator set them. Left out: unchanged",
        "aggregates": "aggregates not named are removed. Left out: unchanged",
        "joins": "aggregates that it is put into, beside those that it is in",
    },
    "ReportedInventory": _INVENTORY,
    "InventoryState": {**_INVENTORY, "used": "how much of it is in use"},
    "ProviderState": {
        "internal": "a number that placement gives it, and never gives to another provider",
        "id": "its id",
        "name": "its name",
        "root": "the root of its tree",
        "parent": "the id of the parent provider; none for the root",
        "cell": "the cell of its reporter",
        "generation": "rises with each write of this provider",
        "shape": "the shape of its tree, the same on all providers of the tree",
        "revision": "orders the states of this provider",
        "inventories": "by resource class",
        "traits": "its traits",
        "aggregates": "the aggregates that it is in",
        "consumers": "how many consumers have it as their host",
        "made_by_name": "whether it was written by name, and no report has named its inventories",
    },
    "Share": {
        "host": "the root provider of the host",
        "amounts": "what it holds there, and of pools that share with the host",
        "shapes": "the shapes of these trees, as the sender saw them; empty: not checked",
        "instances_max": "how many consumers the host may have; 0: any number. On the wire a share is a list of these four values",
    },
    "ShapeSeen": {"root": "the root of the tree", "shape": "its shape; on the wire a list of both"},
    "ServerGroup": {
        "id": "the group",
        "policy": "affinity or anti-affinity, hard or soft",
        "max_per_host": "with anti-affinity: how many members one host may have",
    },
    "AskCandidates": {
        "groups": "request groups: one without a suffix, or several with different suffixes",
        "group_policy": "`isolate`: groups with suffixes get different providers. Required if there are several of them",
        "same_subtree": "lists of suffixes; the providers of each list must be in the subtree of one of them",
        "root_required": "traits that the tree's root must have",
        "root_forbidden": "traits that the tree's root must not have",
        "limit": "how many candidates at most",
    },
    "RequestGroup": {
        "suffix": "the group's name; empty for the group that may take from the whole tree",
        "resources": "the amount of each resource class",
        "required": "lists of traits; the provider must have at least one trait of each list",
        "forbidden": "traits that the provider must not have",
        "preferred": "the weight of each optional trait",
        "member_of": "lists of aggregates; the provider must be in at least one aggregate of each list",
        "forbidden_aggregates": "aggregates that the provider must not be in",
        "in_tree": "only providers in the tree of this provider",
    },
    "CandidatesFound": {
        "verdict": "`candidates`; `unknown_class`, `unknown_trait` or `not_allowed` if the question is wrong; or `too_costly`: the "
        "search, or its answer, took (`spent`) more `steps`, `bytes` or `answer_bytes` than its `budget`",
    },
    "Candidate": {
        "share": "the share that a claim for this candidate names",
        "mappings": "the providers that satisfy each suffix",
        "preference": "the sum of the weights of preferred traits that it has",
    },
    "ResourceAmount": {
        "provider": "the provider's id; on the wire an amount is a list of these three values",
        "resource": "the resource class",
        "amount": "how much",
    },
    "ReportAnswered": {
        "root": "the tree's root provider",
        "verdict": "`accepted`, `outdated`, `in_use` or `not_allowed`, each with its own fields",
    },
    "InventoryRefused": {
        "cell": "the host's cell",
        "root": "the tree's root provider",
        "verdict": "`outdated`, `in_use` or `not_allowed`, each with its own fields",
    },
}
