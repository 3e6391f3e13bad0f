"""Administrators' writes of custom names: resource classes and traits that they create, rename and delete."""

from collections.abc import Iterable, Sequence

from bus.messages.administration import (
    AlreadyThere,
    CreateClass,
    CreateTrait,
    DeleteClass,
    DeleteTrait,
    Done,
    KindOfNames,
    NameInUse,
    NameWrite,
    RenameClass,
    UnknownClass,
    UnknownTrait,
    WriteVerdict,
)
from bus.messages.placement import NotAllowed
from placement_worker.core.ledger import (
    BatchDecision,
    NameChange,
    NameChanges,
    NameKeys,
    NamesInUse,
    StoredNames,
)
from placement_worker.core.vocabulary import Vocabulary


def keys_of_name_writes(writes: Iterable[NameWrite]) -> NameKeys:
    names: dict[KindOfNames, set[str]] = {"classes": set(), "traits": set()}
    for write in writes:
        names[_kind_of(write)] |= {write.name, write.to} if isinstance(write, RenameClass) else {write.name}
    return {kind: frozenset(each) for kind, each in names.items()}


def decide_names(
    names: StoredNames, writes: Sequence[NameWrite], vocabulary: Vocabulary
) -> BatchDecision[WriteVerdict, NameChanges]:
    """Judge each write on the names as the earlier writes of the batch left them."""
    drafts: dict[KindOfNames, _NamesDraft] = {
        "classes": _NamesDraft(names["classes"], vocabulary.classes),
        "traits": _NamesDraft(names["traits"], vocabulary.traits),
    }
    verdicts = tuple([_judge(drafts[_kind_of(write)], write) for write in writes])
    return BatchDecision(verdicts, {kind: draft.change() for kind, draft in drafts.items()})


def _kind_of(write: NameWrite) -> KindOfNames:
    return "traits" if isinstance(write, CreateTrait | DeleteTrait) else "classes"


class _NamesDraft:
    """The custom resource classes (or the custom traits) while one batch of writes is decided."""

    def __init__(self, stored: NamesInUse, standard: frozenset[str]) -> None:
        self._stored = stored
        self.standard = standard
        self.names = set(stored.existing)
        self._went: set[str] = set()

    def create(self, name: str) -> WriteVerdict:
        if self.exists(name):
            return AlreadyThere(name=name)
        self.names.add(name)
        return Done()

    def refuse_to_remove(self, name: str) -> NotAllowed | NameInUse | None:
        """Why an existing name cannot be removed; None if it can."""
        if name in self.standard:
            return NotAllowed(
                field="name", reason=f"{name!r} is a standard name; only custom names can be changed"
            )
        # A name that this batch created cannot be in use yet.
        if name in self._stored.users and name not in self._went:
            return NameInUse(name=name, provider=self._stored.users[name])
        return None

    def remove(self, name: str) -> None:
        self.names.remove(name)
        self._went.add(name)

    def exists(self, name: str) -> bool:
        return name in self.names or name in self.standard

    def change(self) -> NameChange:
        return NameChange(
            new=tuple(sorted(self.names - self._stored.existing | self.names & self._went)),
            gone=tuple(sorted(self._stored.existing & self._went)),
        )


def _judge(names: _NamesDraft, write: NameWrite) -> WriteVerdict:
    match write:
        case CreateTrait() | CreateClass():
            return names.create(write.name)
        case DeleteTrait():
            return _delete(names, write.name) or UnknownTrait(names=(write.name,))
        case DeleteClass():
            return _delete(names, write.name) or UnknownClass(names=(write.name,))
        case RenameClass():
            return _rename(names, write)


def _delete(names: _NamesDraft, name: str) -> WriteVerdict | None:
    """Delete a custom name. Returns the verdict; None if there is no such name."""
    if not names.exists(name):
        return None
    if refused := names.refuse_to_remove(name):
        return refused
    names.remove(name)
    return Done()


def _rename(classes: _NamesDraft, write: RenameClass) -> WriteVerdict:
    if not classes.exists(write.name):
        return UnknownClass(names=(write.name,))
    if write.name == write.to:
        return Done()
    if refused := classes.refuse_to_remove(write.name):
        return refused
    if classes.exists(write.to):
        return AlreadyThere(name=write.to)
    classes.remove(write.name)
    classes.names.add(write.to)
    return Done()
