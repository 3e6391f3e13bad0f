"""Decides the offer of a node: its class and traits, whether it may be claimed, and the reasons if not.

A node's offer is always one unit of its class. A node that may
not be claimed is reserved and stays in placement, so that nothing has to be dropped while an instance holds it.

Nova's driver is milder in two points: it offers a retired node, and a node with a fault. It is stricter in one: it
does not offer a node whose power state is null.
"""

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct, structs

from engine.places import why_no_place
from ironic_sync.core.node import Node, is_of_nobody, provision_state
from ironic_sync.core.rows import NodeRow, Offer

MISSING = "Ironic no longer has this node: it is held until that is believed"

# Placement's limit for the name of a class or trait.
NAME_MAX = 255
_OUTSIDE = re.compile(r"[^0-9A-Za-z]+")
_CUSTOM_TRAIT = re.compile(r"CUSTOM_[A-Z0-9_]+\Z")
_SHOWN_MAX = 80


def class_of(resource_class: str | None) -> str:
    """Placement's name for Ironic's resource class, made as Nova makes it; empty if there is none."""
    if not resource_class:
        return ""
    name = f"CUSTOM_{_OUTSIDE.sub('_', resource_class).upper()}"
    return name if len(name) <= NAME_MAX else ""


def reasons_against(node: Node) -> tuple[str, ...]:
    """Why nobody may claim this node; empty if it may be claimed."""
    return tuple(
        reason
        for reason in (
            _against_state(node),
            against_maintenance(node),
            "the node is retired" if node.retired else "",
            # Only an operator sets it, and Ironic would never take an instance off again.
            "the node is protected" if node.protected else "",
            "power state is 'error'" if node.power_state == "error" else "",
            f"instance {node.instance_uuid} is on the node" if node.instance_uuid else "",
            f"fault is {_shown(node.fault)}" if node.fault else "",
            _against_class(node.resource_class),
        )
        if reason
    )


def is_available(node: Node) -> bool:
    return not reasons_against(node)


def offer_of(row: NodeRow, standard_traits: AbstractSet[str], place_property: str = "") -> Offer:
    """Decide what a node offers to placement, by the state in its row. `standard_traits` are the names of os_traits, and the property of
    this name says where the node is.
    """
    node = row.node
    if node is None:
        return Offer(reasons=("nothing is known of the node yet",))
    named = class_of(node.resource_class)
    kept = _kept_class(row, named)
    against = (*_against_row(row, kept), *reasons_against(node))
    traits, left_out = _traits_of(node, standard_traits)
    place = str(node.properties.get(place_property) or "")
    if why := why_no_place(place):
        left_out += (f"property {place_property} {_shown(place)} is left out: {why}",)
    return Offer(
        resource_class=named,
        kept_class=kept,
        reserved=bool(against),
        traits=traits,
        reasons=against + left_out,
        place="" if why else place,
    )


def keeping_class(offer: Offer, held: str) -> Offer:
    """The offer after placement refused it because the `held` class is in use: that class stays, reserved."""
    if held in (offer.resource_class, offer.kept_class):
        return offer
    return structs.replace(
        offer, kept_class=held, reserved=True, reasons=(_against_kept(held), *offer.reasons)
    )


def without_kept_class(row: NodeRow, standard_traits: AbstractSet[str]) -> Offer:
    """The offer without the former class. It is sent as a trial, which placement refuses if an instance still holds
    that class.
    """
    offer = offer_of(structs.replace(row, offer=None, reported=None), standard_traits)
    return structs.replace(offer, place=row.offer.place) if row.offer else offer


def _kept_class(row: NodeRow, named: str) -> str:
    """The node's former class, while its instance is known to hold that, or placement has said that it is in use;
    otherwise empty.
    """
    kept = row.offer.kept_class if row.offer else ""
    if not kept and row.holds_instance and row.reported:
        kept = row.reported.kept_class or row.reported.resource_class
    return kept if kept != named else ""


def _against_row(row: NodeRow, kept: str) -> tuple[str, ...]:
    return tuple(
        reason
        for reason in (
            "the node is deleted in Ironic" if row.is_deleted else "",
            MISSING if row.missing_since_us else "",
            f"the node moves from cell {row.cell!r} to {row.cell_wanted!r}" if row.cell_wanted else "",
            f"the node is read again: {'; '.join(row.doubts)}" if row.is_doubted else "",
            f"{row.deploy.kind} of instance {row.deploy.instance} is under way" if row.deploy else "",
            row.discord or (row.trouble if row.older_than else ""),
            _against_kept(kept) if kept else "",
        )
        if reason
    )


def _against_kept(kept: str) -> str:
    return f"the former class {kept} is still held"


def _against_state(node: Node) -> str:
    reason = provision_state(node.provision_state).reserved
    if reason and is_of_nobody(node):
        reason = "Ironic has deployed the node, and has no instance there"
    return reason and f"provision state is {_shown(node.provision_state)}: {reason}"


def against_maintenance(node: Node) -> str:
    if not node.maintenance:
        return ""
    why = f": {_shown(node.maintenance_reason)}" if node.maintenance_reason else ""
    return f"the node is in maintenance{why}"


def _against_class(resource_class: str | None) -> str:
    if class_of(resource_class):
        return ""
    if not resource_class:
        return "the node has no resource class"
    return f"resource class {_shown(resource_class)} is longer than {NAME_MAX} characters with CUSTOM_"


def _traits_of(node: Node, standard_traits: AbstractSet[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The traits that placement takes, and for each of the others the reason why it is left out. These reasons do not
    reserve the node.
    """
    taken, left_out = [], []
    for trait in sorted(set(node.traits)):
        if trait in standard_traits or _CUSTOM_TRAIT.match(trait):
            taken.append(trait)
        else:
            left_out.append(f"trait {_shown(trait)} is left out: neither CUSTOM_ nor a standard name")
    return tuple(taken), tuple(left_out)


def _shown(text: str | None) -> str:
    return repr(text if text is None or len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")


# Which cell does a node belong to, and what happens when that changes?
#
# The operator maps shards and conductor groups to cells. A shard goes before a group; the default cell takes the rest.
#
# Placement gives a tree of providers to one cell. A report of another cell is refused until the tree has no provider
# left. A node that nothing holds therefore moves in two steps: its provider is removed in the old cell, then made in the
# new one. A node with an instance stays: its instance is a row of the old cell's conductor.


NO_TABLE = "no table names its cell"


class CellMap(Struct, frozen=True, kw_only=True):
    """The operator's tables that assign nodes to cells. Without `default`, a node that no table names has no cell."""

    groups: Mapping[str, str] = {}
    shards: Mapping[str, str] = {}
    default: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every cell that a node may be in."""
        named = {*self.groups.values(), *self.shards.values(), self.default}
        return tuple(sorted(named - {""}))


def cell_map(
    cells: Sequence[str],
    *,
    default: str = "",
    groups: Mapping[str, str] | None = None,
    shards: Mapping[str, str] | None = None,
) -> CellMap:
    """The tables as the operator states them. `cells` are the cells of the cloud; if there is only one, it is the default."""
    only = cells[0] if len(cells) == 1 else ""
    return CellMap(groups=groups or {}, shards=shards or {}, default=default or only)


class CellPlan(Struct, frozen=True):
    """The cell of a node from now on, empty if it has none yet; and the cell that it is to go to, if it moves.

    A node moves in two steps. First a report in the name of `cell` removes its provider, then the node is reported in
    `wanted`. Placement refuses the removal if a claim came first; then the node stays. `note` says why the cell is
    unknown, or not the one that the operator's tables name.
    """

    cell: str
    wanted: str = ""
    note: str = ""


def cell_of(node: Node, cells: CellMap) -> str:
    """The cell that the operator's tables of shards and conductor groups name for this node; empty if none."""
    if node.shard and node.shard in cells.shards:
        return cells.shards[node.shard]
    return cells.groups.get(node.conductor_group, cells.default)


def decide_cell(row: NodeRow, cells: CellMap, *, can_read: bool) -> CellPlan:
    """The cell that this row's node belongs to from now on, and a note if that is undecided or not as the tables say.

    Where shards decide the cell, a node that can be read from Ironic's API is read first: notifications have no shard.
    """
    node = row.node
    if node is None:
        return _undecided(row, "nothing is known of the node yet")
    if cells.shards and can_read and not row.read_at_us:
        return _undecided(row, "the node was not read yet, and Ironic's notifications have no shard")
    wanted, signs = cell_of(node, cells), _signs_of(node)
    if not wanted:
        stays = f", it stays in {row.cell!r}" if row.cell else ""
        return CellPlan(row.cell, note=f"{signs}: {NO_TABLE}{stays}")
    if row.cell in ("", wanted):
        return CellPlan(wanted)
    if row.holds_instance:
        return CellPlan(row.cell, note=f"{signs}: it stays in {row.cell!r} while an instance is on it")
    return CellPlan(row.cell, wanted, f"{signs}: it moves from {row.cell!r} to {wanted!r}")


def _undecided(row: NodeRow, reason: str) -> CellPlan:
    return CellPlan(row.cell, note="" if row.cell else reason)


def _signs_of(node: Node) -> str:
    """The node's shard and conductor group, by which the tables were searched, as a text."""
    shard = f"shard {node.shard!r} and " if node.shard else ""
    return f"the node has {shard}conductor group {node.conductor_group!r}"
