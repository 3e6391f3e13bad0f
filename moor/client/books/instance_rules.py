"""Which faults does this view of an instance show?

Pure: the caller has read the books, and looks a second time before it believes a fault. Things in flight are no faults: a
boot between its claim and its row, a swap, a delete, a message that waits for its reader. They show by the states of rows
and claims, and by changes that are more recent than the time to settle.

The cell owns an instance: its row says on which host it is, and which share that takes. The API level's row decides
whether it is wanted at all.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import structs

from bus.messages.audit import (
    BookEntry,
    CellEntry,
    ExpectedClaim,
    HostEntry,
    amounts_by_class,
)
from bus.messages.build import InstanceState
from bus.messages.placement import NO_OWNER
from bus.topology import CELL0
from engine.hosts import NODE
from engine.inventories import GroupId, ProviderId, ResourceAmount, Share
from moor.client.books.views import (
    INSTANCE,
    RECOUNT,
    Fault,
    InstanceView,
    Mend,
    Places,
    Sight,
    is_of_nova,
    is_of_old_shape,
    order_to_claim,
    order_to_destroy,
    order_to_free,
    order_to_remove,
    order_to_write_row,
    project_of,
)

# How the API level calls a cell's states.
_AT_API = {"building": "placed", "swapping": "placed", "broken": "error"}
# At API level nothing is decided yet: no cell has it.
_OPEN = ("accepted", "waiting")
_DELETED = ("deleting", "deleted")
# At rest, with a claim.
_SIZED = ("active", "moved", "stopped", "shelved")
# In its cell a claim is being moved or freed.
_BETWEEN = ("swapping", "moving", "deleting")
# A consumer without a cell is a program's: of Nova, or of another one.
NO_CELLS = ("", CELL0)
_LOOK = "no row says whether it is wanted: look what runs there, and restore its row"
# Of what neither a cell nor the API level has a row.
UNKNOWN = f"{_LOOK}, or have --heal --remove-strays remove it"
_IN_DOUBT = (
    "its host has an attempt that its row cannot explain: look which of them is right, and restore the row"
)

_BROKEN = "put the file back, before the guest stops; or `moor rebuild` it, which loses what is on its disk"

ORPHAN = "orphan"
MISSING = "missing allocation"
AMOUNTS = "wrong amounts"
SIZE = "wrong size"
HOST = "wrong host"
TYPE = "wrong type"
PROJECT = "wrong project"
USER = "wrong user"
GROUP = "wrong group"
SPLIT = "split group"
ATTEMPT = "wrong attempt"
DRIFT = "drift"
STRAY = "stray"
LOST = "lost"
BROKEN = "broken disk"
TWICE = "in two cells"
UNLISTED = "unlisted"
COUNTS = "counts"


def faults_of(view: InstanceView, sight: Sight, places: Places) -> Iterator[Fault]:
    if is_in_flight(view, sight):
        return
    living = [each for each in view.in_cells if _is_living(each)]
    if len(living) > 1:
        cells = ", ".join(each.instance.cell for each in living)
        yield _fault(TWICE, view, f"the cells {cells} each have it", advice="`moor audit` does not choose")
        return
    entry = own_entry(view)
    in_doubt = is_in_doubt(view, entry)
    for fault in (
        *_of_claims(view, entry, sight, places),
        *_of_rows(view, entry),
        *_of_size(view, entry),
        *_on_hosts(view, entry, sight, places),
    ):
        yield structs.replace(fault, mend=None, advice=_IN_DOUBT) if in_doubt and fault.mend else fault


def is_in_doubt(view: InstanceView, entry: CellEntry | None) -> bool:
    """Does a host have an attempt that may be the instance itself, although the cell's row does not expect it there?

    Then the row may be wrong, or from an old backup: to follow it could destroy the instance, or free its share.
    """
    return any(_may_be_it(each.entry, entry, view) for each in view.on_hosts)


def _may_be_it(found: HostEntry, entry: CellEntry | None, view: InstanceView) -> bool:
    """Could this attempt on a host be the instance that its user has, and not a remainder, although the cell's row
    (`entry`) does not expect it there?

    Each attempt is on one host only, and the row names the last attempt and its host. So the answer is yes if there is
    no row, if the attempt is later than the row's, or if it is the row's and the row's host does not have it. If the
    row says that the instance is over, it is yes if the API level says otherwise.
    """
    told = view.at_api
    if entry is None:
        return told is None or told.state not in _DELETED
    if found in entry.on_hosts:
        return False
    if found.attempt > entry.instance.attempt:
        return True
    if _is_living(entry):
        there = [each.entry for each in view.on_hosts]
        return any(found.attempt == each.attempt and each not in there for each in entry.on_hosts[:1])
    return told is not None and told.state not in (*_DELETED, "error", at_api(entry.instance).state)


def way_back_of(entry: CellEntry) -> ExpectedClaim | None:
    """The claim by which a moved instance's migration holds the first host, until the move is confirmed.

    None if the instance has no such claim.
    """
    claims = [each for each in entry.claims if each.consumer != entry.instance.id and each.share is not None]
    return claims[0] if claims else None


def faults_of_way_back(
    view: InstanceView, consumer: BookEntry | None, sight: Sight, places: Places
) -> Iterator[Fault]:
    """Faults of the claim on a moved instance's first host. `consumer` is its migration, as placement has it."""
    if is_in_flight(view, sight):
        return
    seen = consumer and (consumer.generation, consumer.attempt, consumer.held)
    for entry in view.in_cells:
        if (claim := way_back_of(entry)) is not None:
            for fault in _of_claim(view, entry, claim, consumer, places):
                yield structs.replace(fault, version=(view.version, seen))


def affinity_host_of(view: InstanceView, sight: Sight) -> tuple[GroupId, ProviderId] | None:
    """The affinity group of which the instance is a member, and its host; None if it is of none, or on its way."""
    entry = own_entry(view)
    if entry is None or entry.group is None or entry.group.policy != "affinity" or is_in_flight(view, sight):
        return None
    shares = [each.share for each in entry.claims if each.consumer == view.id and each.share is not None]
    return (entry.group.id, shares[0].host) if shares else None


def faults_of_group(views: Iterable[InstanceView], sight: Sight, places: Places) -> Iterator[Fault]:
    """The members of an affinity group that are not on the host of most of them: some could not follow when all left a host."""
    members = [(view, found[1]) for view in views if (found := affinity_host_of(view, sight)) is not None]
    counts = Counter(host for _, host in members)
    most = max(sorted(counts), key=counts.__getitem__, default=None)
    apart = [(view, host) for view, host in members if host != most]
    ids = " ".join(str(view.id) for view, _ in apart)
    advice = f"no member can be built meanwhile: moor migrate {ids} --to {places.name(most)}"
    for view, host in apart:
        text = f"it is on {places.name(host)}, and most of its affinity group on {places.name(most)}"
        yield _fault(SPLIT, view, text, advice=advice)


def contradiction(text: str) -> Fault:
    """A fault that placement found in its own tables, in the words of its audit."""
    return Fault(COUNTS, None, f"placement: {text}", mend=RECOUNT, version=(text,))


def _fault(kind: str, view: InstanceView, text: str, mend: Mend | None = None, advice: str = "") -> Fault:
    return Fault(kind, view.id, f"instance {view.id}: {text}", mend, advice, view.version)


def is_in_flight(view: InstanceView, sight: Sight) -> bool:
    """May the instance change soon, or may a cell have it that has not answered? Then it is not judged."""
    told, consumer = view.at_api, view.consumer
    is_in_cell = any(map(_is_living, view.in_cells))
    if told is not None:
        is_young = told.changed_at is not None and sight.now - told.changed_at < sight.settle
        # The order to place it may be on its way to its cell.
        is_open = told.state in _OPEN and not is_in_cell
        if is_open or is_young or (told.state == "placed" and not view.in_cells):
            return True
    if any(cell not in (*NO_CELLS, *sight.cells) for cell in _cells_to_hear(view, sight)):
        return True
    # A boot writes its row after its claim.
    if consumer is not None and consumer.is_new and told is None and not view.in_cells:
        return True
    return any(
        each.stirred_at is not None and sight.now - each.stirred_at < sight.settle for each in view.in_cells
    )


def _cells_to_hear(view: InstanceView, sight: Sight) -> Iterator[str]:
    """The cells that must have answered before the view is judged: those of the rows and of the consumer.

    A cell that the audit does not know counts only if the API level's row names it and no cell has the instance.
    """
    has_it = any(map(_is_living, view.in_cells))
    if view.at_api is not None and (view.at_api.cell in sight.known or not has_it):
        yield view.at_api.cell
    yield from (each.instance.cell for each in view.in_cells)
    if view.consumer is not None and not view.in_cells and view.consumer.cell in sight.known:
        yield view.consumer.cell


def _is_living(entry: CellEntry) -> bool:
    return any(claim.share is not None for claim in entry.claims) or entry.instance.state in _BETWEEN


def own_entry(view: InstanceView) -> CellEntry | None:
    """Choose the row to judge by, if several cells have a row of the instance.

    It is the row of a cell that holds a share for the instance, or whose claim for it is being moved or freed. Without
    such a row it is that of the cell that the API level names, or else the first.
    """
    told = view.at_api
    for each in view.in_cells:
        if _is_living(each):
            return each
    return next(
        (each for each in view.in_cells if told is None or each.instance.cell == told.cell),
        view.in_cells[0] if view.in_cells else None,
    )


# Its claims


def _of_claims(view: InstanceView, entry: CellEntry | None, sight: Sight, places: Places) -> Iterator[Fault]:
    claims = [claim for claim in (entry.claims if entry else ()) if claim.consumer == view.id]
    if entry is None or not claims:
        yield from _orphan(view, entry, sight, places)
    elif claims[0].share is not None:
        yield from _of_claim(view, entry, claims[0], view.consumer, places)


def _of_claim(
    view: InstanceView, entry: CellEntry, claim: ExpectedClaim, consumer: BookEntry | None, places: Places
) -> Iterator[Fault]:
    assert claim.share is not None, "only a claim with a share is compared"
    mend = order_to_claim(view, entry, claim, consumer, places)
    whose = "" if claim.consumer == view.id else f"its migration {claim.consumer}: "
    if consumer is None or not consumer.held or consumer.ended:
        yield _fault(
            MISSING,
            view,
            f"{whose}placement has no claim of it, and it should hold {amounts_in_words(claim.share.amounts, places)}: the instance is "
            f"{entry.instance.state} on {places.name(entry.host)} in cell {entry.instance.cell}",
            mend,
        )
        return
    for kind, text in _differences(view, consumer, entry, claim, places):
        yield _fault(kind, view, whose + text, mend)


def _orphan(view: InstanceView, entry: CellEntry | None, sight: Sight, places: Places) -> Iterator[Fault]:
    """The fault of a consumer with the instance's id that holds resources although no cell needs them.

    Allocations that a program wrote for itself are no fault.
    """
    consumer = view.consumer
    if consumer is None or not consumer.held or is_of_nova(consumer):
        return
    if entry is None and view.at_api is None and not (consumer.attempt and consumer.type == INSTANCE):
        return
    told = view.at_api
    if entry is not None:
        why = f"it is {entry.instance.state} in cell {entry.instance.cell}"
    elif told is not None and told.state not in ("deleted", "error", "deleting"):
        # The cell has lost its row: whether the instance exists is for a person to find out.
        return
    else:
        why = f"it is {told.state}" if told else "no cell and no row of the API level knows it"
    text = f"{why}, and it holds {amounts_in_words(consumer.held, places)}"
    if view.on_hosts:
        yield _fault(ORPHAN, view, text, advice="a host still has it: heal again when that has removed it")
    elif consumer.cell not in (*NO_CELLS, *sight.known):
        yield _fault(ORPHAN, view, text, advice=no_such_cell(consumer))
    else:
        yield _fault(ORPHAN, view, text, order_to_free(consumer))


def no_such_cell(consumer: BookEntry) -> str:
    return f"no broker and no host of its cell {consumer.cell!r} is known, so nobody can say whether it needs that"


def _differences(
    view: InstanceView, consumer: BookEntry, entry: CellEntry, claim: ExpectedClaim, places: Places
) -> Iterator[tuple[str, str]]:
    assert claim.share is not None, "only a claim with a share is compared"
    wanted, state = claim.share, entry.instance
    host = wanted.host if claim.has_place else None
    group = entry.group.id if entry.group and claim.has_place else None
    if consumer.host != host:
        yield (
            HOST,
            f"its cell has it on {places.name(host)}, and placement on {places.name(consumer.host)}, with "
            + amounts_in_words(consumer.held, places),
        )
    elif not _are_same(view, consumer, wanted, places):
        yield (
            AMOUNTS,
            f"on {places.name(wanted.host)} it holds {amounts_in_words(consumer.held, places)}, and should hold "
            + amounts_in_words(wanted.amounts, places),
        )
    for kind, what, has, should_be in (
        (TYPE, "type", consumer.type, claim.type),
        (PROJECT, "project", consumer.project, project_of(view, entry) or NO_OWNER),
        (USER, "user", consumer.user, entry.user or NO_OWNER),
        (GROUP, "server group", str(consumer.group or ""), str(group or "")),
        (ATTEMPT, "attempt", str(consumer.attempt), str(claim.attempt)),
        (ATTEMPT, "generation", str(consumer.generation), str(max(1, consumer.generation))),
        (ATTEMPT, "cell", consumer.cell, state.cell),
    ):
        if has != should_be:
            yield kind, f"its {what} in placement is {has or 'none'!r}, and should be {should_be or 'none'!r}"


def _are_same(view: InstanceView, consumer: BookEntry, wanted: Share, places: Places) -> bool:
    """Does the consumer hold the amounts that its cell expects (`wanted`)?

    If the consumer is the instance and still holds what was claimed, its amounts must be equal to `wanted` for each
    provider. A reshape may since have moved amounts to other providers of the tree: then only the sums of each tree
    must be equal. Providers that are gone, since the host has another shape, count as parts of its tree.

    A claim or a swap raises the consumer's generation together with its attempt; a reshape raises the generation alone.
    So if generation and attempt are equal, nothing was reshaped, unless the share is from an earlier shape of the host: then the
    audit itself has mended the claim since. A migration holds a part of the share that its instance had before the move: it is
    not compared if the instance's share may have been reshaped.
    """
    held, should = amounts_by_class(consumer.held), amounts_by_class(wanted.amounts)
    own = view.consumer
    is_as_claimed = own is not None and own.generation == own.attempt
    if consumer.id == view.id and is_as_claimed and not is_of_old_shape(wanted, places):
        return held == should
    if consumer.id != view.id and not is_as_claimed:
        return True
    return _by_tree(held, places, wanted.host) == _by_tree(should, places, wanted.host)


def _by_tree(
    amounts: Mapping[tuple[ProviderId, str], int], places: Places, host: ProviderId
) -> Mapping[tuple[ProviderId, str], int]:
    sums: Counter[tuple[ProviderId, str]] = Counter()
    for (provider, resource), amount in amounts.items():
        root = places.root(provider) if provider in places.providers else host
        sums[root, resource] += amount
    return sums


def amounts_in_words(amounts: tuple[ResourceAmount, ...], places: Places) -> str:
    words = [
        f"{count} {resource} of {places.name(provider)}"
        for (provider, resource), count in amounts_by_class(amounts).items()
    ]
    return ", ".join(words) or "nothing"


# Its rows


def _of_rows(view: InstanceView, entry: CellEntry | None) -> Iterator[Fault]:
    told = view.at_api
    if told is None:
        if entry is not None and (_is_living(entry) or entry.instance.state == "offloaded"):
            where = entry.instance
            yield _fault(
                UNLISTED,
                view,
                f"it is {where.state} in cell {where.cell}, and the API level has no row of it",
                advice="no row says who asked for it: restore the row from a backup",
            )
        return
    if entry is None:
        yield from _without_cell_row(view, told)
        return
    of_cell = at_api(entry.instance)
    if told.state in _DELETED and of_cell.state == "deleting":
        return
    if told.state in _DELETED and of_cell.state != "deleted":
        yield _fault(
            DRIFT,
            view,
            f"the API level has it {told.state}, and it is {of_cell.state} in cell {of_cell.cell}",
            order_to_remove(told, of_cell.cell),
        )
        return
    if of_cell.state == "moving" or _has_not_come(told, of_cell):
        return
    if differs := list(_fields_that_differ(told, of_cell)):
        yield _fault(
            DRIFT,
            view,
            f"the API level has {', '.join(f'{field} {has!r}' for field, has, _ in differs)}, and cell {of_cell.cell} has "
            f"{', '.join(f'{field} {has!r}' for field, _, has in differs)}",
            order_to_write_row(told, of_cell),
        )


def _without_cell_row(view: InstanceView, told: InstanceState) -> Iterator[Fault]:
    """The fault of an instance whose cell has no row of it. Cells forget only deleted instances, after a while."""
    if told.cell in NO_CELLS or told.state == "deleted":
        return
    text = f"the API level has it {told.state} in cell {told.cell}, which has no row of it"
    if told.state == "deleting":
        yield _fault(
            DRIFT, view, text, order_to_write_row(told, structs.replace(told, state="deleted", host=""))
        )
    else:
        yield _fault(DRIFT, view, text, advice="restore the cell's row from a backup, or `moor delete` it")


def _has_not_come(told: InstanceState, of_cell: InstanceState) -> bool:
    """True if the API level has sent the cell further alternates for the instance, or has taken a rebuild or a move of it
    that the cell does not know yet.
    """
    if told.state == "building":
        return of_cell.state == "placed"
    if told.state == "rebuilding" and told.rebuild is not None:
        return of_cell.rebuild is None or of_cell.rebuild.number < told.rebuild.number
    if told.state == "moving" and told.move is not None:
        return of_cell.move is None or of_cell.move.number < told.move.number
    return False


def at_api(of_cell: InstanceState) -> InstanceState:
    """The state of a cell's row, with the name that the API level uses for it."""
    return structs.replace(of_cell, state=_AT_API.get(of_cell.state, of_cell.state))


def _fields_that_differ(told: InstanceState, of_cell: InstanceState) -> Iterator[tuple[str, str, str]]:
    fields = ["state", "cell"]
    if of_cell.state == "deleted":
        # A delete before the placement has no cell at API level.
        fields = ["state"]
    elif of_cell.host:
        fields += ["host", "attempt"]
    for field in fields:
        if (has := getattr(told, field)) != (should := getattr(of_cell, field)):
            yield field, str(has), str(should)


# Its size


def _of_size(view: InstanceView, entry: CellEntry | None) -> Iterator[Fault]:
    """Faults of the size of an instance at rest. Its cell's claim is compared with what its row at API level asks for;
    that placement has the same claim is judged by itself.
    """
    told, details = view.at_api, view.details
    if told is None or entry is None or details is None or details.size is None:
        return
    if told.state not in _SIZED or next(_fields_that_differ(told, at_api(entry.instance)), None) is not None:
        return
    claims = [claim for claim in entry.claims if claim.consumer == view.id and claim.share is not None]
    if not claims or claims[0].share is None:
        return
    held: Counter[str] = Counter()
    for each in claims[0].share.amounts:
        held[each.resource] += each.amount
    asked = Counter({**details.size.amounts})
    if held != asked:
        named = f" {details.size.flavor}" if details.size.flavor else ""
        yield _fault(
            SIZE,
            view,
            f"its claim is for {_sums(held)}, and its flavor{named} asks for {_sums(asked)}",
            advice="give it the size that it should have by `moor resize`",
        )


def _sums(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} {resource}" for resource, amount in sorted(amounts.items())) or "nothing"


# Instances on hosts


def _on_hosts(view: InstanceView, entry: CellEntry | None, sight: Sight, places: Places) -> Iterator[Fault]:
    for found in view.on_hosts:
        if entry is None or found.entry not in entry.on_hosts:
            where = f"host {places.name(found.entry.host)} of cell {found.cell} has its attempt {found.entry.attempt}"
            mend = order_to_destroy(view, entry, found)
            stray = _fault(
                STRAY,
                view,
                f"{where}, and {whereabouts(view, entry, places)}",
                mend,
                "" if mend else UNKNOWN if view.is_alone else _LOOK,
            )
            held = view.consumer is not None and view.consumer.held and view.consumer.host == found.entry.host
            yield stray if held else structs.replace(stray, unheld=found)
        elif found.broken:
            where = f"attempt {found.entry.attempt} on {places.name(found.entry.host)} of cell {found.cell}"
            yield _fault(BROKEN, view, f"{where} cannot run again: {found.broken}", advice=_BROKEN)
    # A row names the host only of an instance that is there.
    if entry is None or entry.kind == NODE or not entry.instance.host or entry.host is None:
        return
    could_be_asked = sight.asked is None or entry.host in sight.asked
    if entry.instance.cell not in sight.computes or not could_be_asked:
        return
    if entry.on_hosts[0] not in [each.entry for each in view.on_hosts]:
        yield _fault(
            LOST,
            view,
            f"it is {entry.instance.state} on {places.name(entry.host)} in cell {entry.instance.cell}, and that host does not "
            f"have its attempt {entry.on_hosts[0].attempt}",
            advice="the host has lost it: recover it there, or `moor delete` it",
        )


def whereabouts(view: InstanceView, entry: CellEntry | None, places: Places) -> str:
    if entry is not None:
        on = f" on {places.name(entry.host)}" if _is_living(entry) else ""
        return f"it is {entry.instance.state}{on} in cell {entry.instance.cell}, by attempt {entry.instance.attempt}"
    if view.at_api is not None:
        return f"it is {view.at_api.state}"
    return "no cell and no row of the API level knows it"
