"""Descriptions of the fields of writes by name to placement's books, questions about them, and the audit."""

from tests.pages.field_descriptions.shared import PAGE

WRITTEN = {
    "provider": "the provider's id",
    "generation": "the provider's generation as you read it; refused if it has changed since. null: not checked",
}

BOOKS: dict[str, dict[str, str]] = {
    "CreateProvider": {
        "id": "a uuid of your choice",
        "name": "a unique name",
        "parent": "the id of the parent provider; none for a root",
        "of_cell": "the cell whose reporters may report it; a child has the cell of its tree",
    },
    "UpdateProvider": {
        "id": "the provider's id",
        "name": "its new name",
        "parent": "its new parent; null: it becomes a root. Left out: unchanged",
        "reparents": "whether it may lose or change a parent; else only a root may get one",
    },
    "DeleteProvider": {"id": "the provider's id"},
    "SetInventories": {
        **WRITTEN,
        "inventories": "by resource class; classes not named are removed",
        "as_reported": "true, without `inventories`: what the provider's reporter last reported",
    },
    "PutInventory": {
        **WRITTEN,
        "resource": "the resource class",
        "inventory": "the new inventory of this class",
        "is_new": "true: refused if the class has an inventory. false: refused if it has none",
    },
    "DropInventory": {"provider": "the provider's id", "resource": "the resource class"},
    "SetTraits": {**WRITTEN, "traits": "all traits of the provider; traits not named are removed"},
    "SetAggregates": {
        **WRITTEN,
        "aggregates": "all aggregates of the provider; aggregates not named are removed",
        "moves_generation": "whether the write increases the provider's generation",
    },
    "CreateTrait": {"name": "must start with `CUSTOM_`"},
    "DeleteTrait": {"name": "the trait's name"},
    "CreateClass": {"name": "must start with `CUSTOM_`"},
    "RenameClass": {"name": "the class's present name", "to": "must start with `CUSTOM_`"},
    "DeleteClass": {"name": "the class's name"},
    "SetAllocations": {
        "consumers": "each with all that it holds after this write. All of them are written, or none"
    },
    "DeleteAllocations": {"consumer": "the consumer whose allocations are deleted"},
    "Reshape": {
        "inventories": "for each of these providers, all its inventories after this write",
        "allocations": "the consumers whose allocations change, each with all that it holds after this write",
    },
    "ConsumerAllocations": {
        "consumer": "the consumer's id",
        "amounts": "the amounts it holds after this write; empty: the consumer is deleted",
        "project": "the consumer's project",
        "user": "the consumer's user",
        "generation": "the consumer's generation as you read it; null for a new consumer",
        "type": "the consumer's type, such as `INSTANCE`. Left out: unchanged",
        "judges_generation": "whether the write is refused if the consumer's generation has changed",
    },
    "ProviderInventories": {
        "provider": "the provider's id",
        "generation": "the provider's generation as you read it",
        "inventories": "by resource class; classes not named are removed",
    },
    "AskConsumer": {"consumer": "the consumer's id"},
    "AskHolders": {**PAGE, "provider": "the provider of which the consumers hold something"},
    "AskNames": {**PAGE, "of": "`classes` or `traits`"},
    "WriteAnswered": {
        "verdict": "`done`, `written` or `already_there`; or why not: `unknown_provider`, `unknown_class`, "
        "`unknown_trait`, `unknown_consumer`, `generation_moved`, `consumer_moved`, `name_taken`, `id_taken`, "
        "`has_children`, `inventory_present`, `inventory_absent`, `in_use`, `name_in_use`, `does_not_fit` or "
        "`not_allowed`, each with its own fields",
    },
    "AskBooks": {
        "consumers": "these consumers; none: a page of all that hold something",
        "after": "the page behind this consumer's id",
        "limit": "how many at most",
        "new_s": "mark those that were claimed within so many seconds; 0: mark none",
    },
    "BooksFound": {"consumers": "the consumers", "next": "where the next page begins; empty on the last one"},
    "BookEntry": {
        "id": "the consumer; for an instance, its id",
        "type": "its type",
        "project": "its project",
        "user": "its user",
        "cell": "the cell that may swap and release what it holds",
        "generation": "increases with every write",
        "attempt": "the highest attempt seen; 0 if no claim was",
        "ended": "that attempt has ended",
        "host": "the host on which it lives",
        "group": "the server group of which it is a member",
        "held": "what it holds, by provider",
        "is_new": "it was claimed within the `new_s` of the question",
    },
    "ContradictionsFound": {
        "contradictions": "the first 500, in sentences",
        "count": "how many there are",
    },
    "MendConsumer": {
        "consumer": "the consumer",
        "seen": "its row as the sender saw it; empty: it had none",
        "claim": "what it is to hold; empty: it ends and holds nothing",
    },
    "SeenConsumer": {
        "generation": "its generation",
        "attempt": "its attempt",
        "ended": "that attempt has ended",
    },
    "MendedClaim": {
        "cell": "its cell",
        "attempt": "its attempt",
        "share": "its host, and what it is to hold there; shapes are not checked",
        "type": "its type",
        "project": "its project",
        "user": "its user",
        "group": "the server group of which it is a member; its policy is not judged",
        "has_place": "it counts as a consumer of that host, and as a member of the group there",
    },
    "MendInstance": {
        "seen": "the sequence of the row as the sender saw it",
        "instance": "the state that its cell has, in the words of the API level",
    },
    "AskCellBooks": {
        "cell": "the cell",
        "instances": "these instances; none: a page of all",
        "after": "the page behind this instance's id",
        "limit": "how many at most",
    },
    "CellBooksFound": {
        "entries": "the cell's rows",
        "next": "where the next page begins; empty on the last one",
    },
    "CellEntry": {
        "instance": "its state in the cell; without failures",
        "user": "its user",
        "host": "the host of its current attempt",
        "kind": "that host's kind",
        "group": "its server group",
        "claims": "the claims that the cell counts on",
        "on_hosts": "hosts that may have something of it; the one that has the instance comes first",
        "freed": "other consumers of it that the cell has released lately",
        "stirred_at": "when the cell last changed the row or sent a message about it",
    },
    "ExpectedClaim": {
        "consumer": "the consumer",
        "type": "its type",
        "attempt": "its attempt",
        "share": "what it must hold; empty: it may hold something, or nothing",
        "has_place": "false for a migration on the host where its instance stays: only the instance counts there",
    },
    "AskHostBooks": {
        "cell": "the cell",
        "instances": "these instances; none: a page of all",
        "hosts": "hosts of which the answer is to say whether they could be asked",
        "after": "the page behind this instance's id",
        "limit": "how many at most; the last instance may bring a few more",
    },
    "HostBooksFound": {
        "entries": "what the hosts have",
        "asked": "those of the question's hosts that work normally",
        "next": "where the next page begins; empty on the last one",
    },
    "HostEntry": {
        "instance": "the instance",
        "host": "the host's root provider",
        "attempt": "the attempt; on the wire an entry is a list of these three values",
    },
    "ConsumerFound": {"consumer": "the consumer as it is now; none if it holds nothing"},
    "HoldersFound": {**PAGE, "holders": "the consumers, each with all that it holds"},
    "UsagesFound": {"usages": "one entry per type of consumer"},
    "SetQuota": {
        "project": "the project",
        "limits": "by name, a resource class or `instances`: the limit, or null for none",
    },
    "AskQuotas": {
        "project": "the project; empty: all projects",
        "after": "the page behind this project",
        "limit": "how many at most",
    },
    "QuotasFound": {
        "quotas": "the quotas, in the order of projects",
        "next": "where the next page begins; empty on the last one",
    },
    "QuotaState": {
        "project": "the project",
        "limits": "by name, a resource class or `instances`",
        "used": "what the project's consumers use, by name; also of what is not limited",
    },
    "NamesFound": {**PAGE, "names": "the names that start with `CUSTOM_`"},
    "ConsumerState": {
        "id": "the consumer's id",
        "project": "its project",
        "user": "its user",
        "type": "its type; empty if unknown",
        "generation": "increases with every write",
        "attempt": "the attempt of the claim that holds the amounts; 0 if no claim does",
        "held": "the amounts it holds, by provider",
    },
    "TypeUsage": {
        "type": "the consumers' type; empty if unknown",
        "consumers": "how many consumers there are",
        "used": "what all of them hold together, by resource class",
    },
}
