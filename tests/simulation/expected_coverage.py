"""The coverage that the seeds of the test command must reach together: every fault, verdict, message, and pair of state and
message.
"""

from bus.message import type_of
from bus.messages import ALL, audit, cell, cloud, hosts
from tests.simulation.boots_checkers import FEED, WHOLE
from tests.simulation.decision_watch import CELL_PAIR, REQUEST_PAIR, RESHAPE, VERDICT
from tests.simulation.demands_checker import WAYS
from tests.simulation.drawing_nodes import EPISODES
from tests.simulation.faults import ALL_FAULTS, CONSEQUENCES, DAEMON_FAULTS, HOST_FAULTS
from tests.simulation.keeping import KEEPING
from tests.simulation.moves_checker import MOVE
from tests.simulation.nodes_checker import BACK, CLAIMED, LEFT, NODE
from tests.simulation.shares_checkers import FLAVOR, GROUP, QUOTA
from tests.simulation.write_oracle import AGAIN, TOGETHER, WRITE

# Only a bug makes it.
_OF_BUGS = (cloud.RowFailed,)
# Required in every single seed without bare metal.
IN_EACH_SEED = (
    ("fault", "duplicate"),
    ("fault", "redelivered"),
    ("fault", "scheduler_down"),
    ("fault", "placement_down"),
    ("verdict", "Claimed"),
    ("verdict", "Released"),
    ("type", "swap"),
    ("type", "destroy"),
    ("type", "remove"),
    ("view", "compared"),
    (WRITE, "CreateProvider / ProviderWritten"),
)

# Required in every single seed of bare metal.
IN_EACH_SEED_OF_NODES = (
    *((NODE, what) for what in (LEFT, BACK, CLAIMED, "taken over", "handed over")),
    *(("order", what) for what in ("patch", "active", "deleted")),
    ("fault", "duplicate"),
    ("fault", "crash"),
    ("fault", "pause"),
    ("fault", "ironic_away"),
)

_OF_SCREENS = (
    cloud.WorkerAlive,
    cloud.AskOverview,
    cloud.Overview,
    cloud.AskTiles,
    cloud.Tiles,
)

# No compute here is started with fewer hosts than before.
_OF_FEWER_HOSTS = (hosts.HostsNotHere,)

# Consoles are files of guests, and only hosts of libvirt keep them.
_OF_CONSOLES = (cell.AskConsole, cell.TellConsole, cell.ConsoleTold, cell.ConsoleFound)

# An import takes instances over while nothing else is done with them: tests/nova/switch.py kills it on its way.
_OF_IMPORTS = (
    *(audit.AdoptInstance, audit.GiveBackInstance, cell.AdoptInCell, cell.GiveBackInCell),
    *(cell.AdoptGuest, cell.LeaveGuest, cell.AdoptDeployed, cell.LeaveNode),
)

VERDICTS = (
    *("Claimed", "AlreadyClaimed", "DoesNotFit", "GroupRefused", "ShapeMoved", "Superseded", "Released"),
    *("TooOld", "NotAllowed", "QuotaExceeded"),
)

_CELL_MESSAGES = (
    "PlaceInCell",
    "RemoveFromCell",
    "InstanceSpawned",
    "SpawnFailed",
    "InstanceDestroyed",
    "Due",
)
# Pairs that are too rare for so few seeds are left out: a swap answered after another worker has handled its answer, a message
# of an old attempt between two others. So is an order repeated after everything has failed.
_CELL_PAIRS = {
    "unknown": ("PlaceInCell", "RemoveFromCell"),
    "building": _CELL_MESSAGES,
    "swapping": (*(word for word in _CELL_MESSAGES if word != "InstanceSpawned"), "SwapAnswered"),
    "active": (*_CELL_MESSAGES, "RebuildInCell", "MoveInCell", "EndMoveInCell"),
    "rebuilding": ("RebuildInCell", "RemoveFromCell", "InstanceRedeployed", "DeployProgressed"),
    "moving": (
        *(word for word in _CELL_MESSAGES if word != "PlaceInCell"),
        *("MoveInCell", "EndMoveInCell", "InstanceStopped", "SwapAnswered"),
    ),
    "moved": ("EndMoveInCell", "RemoveFromCell", "Due"),
    "broken": ("RebuildInCell", "InstanceRedeployed", "Due", "MoveInCell"),
    "error": ("RemoveFromCell", "InstanceDestroyed", "Due"),
    "deleting": tuple(word for word in _CELL_MESSAGES if word != "SpawnFailed"),
    "deleted": tuple(word for word in _CELL_MESSAGES if word != "SpawnFailed"),
}
_REQUEST_PAIRS = {
    "unknown": ("DeleteInstance",),
    "accepted": ("BuildInstance", "DeleteInstance", "a host was found", "no host was found"),
    "waiting": ("BuildInstance", "DeleteInstance", "a host was found", "the deadline"),
    "placed": ("BuildInstance", "DeleteInstance", "a host was found", "InstanceActive", "InstanceFailed"),
    "active": (
        *("BuildInstance", "DeleteInstance", "InstanceActive", "RebuildInstance"),
        *("MoveInstance", "EndMove", "InstanceMoved"),
    ),
    "moving": (
        *("BuildInstance", "DeleteInstance", "InstanceActive", "InstanceFailed"),
        *("MoveInstance", "EndMove", "InstanceMoved"),
    ),
    "moved": ("InstanceActive", "InstanceMoved", "EndMove"),
    "rebuilding": ("RebuildInstance", "DeleteInstance", "InstanceActive", "InstanceFailed"),
    "error": ("BuildInstance", "DeleteInstance", "InstanceFailed", "MoveInstance"),
    "deleting": (
        "BuildInstance",
        "DeleteInstance",
        "InstanceActive",
        "InstanceDeleted",
        "MoveInstance",
    ),
    "deleted": (
        "BuildInstance",
        "DeleteInstance",
        "a host was found",
        "no host was found",
        "InstanceActive",
        "InstanceDeleted",
    ),
}

# Without the verdicts that two hundred seeds see only a few times.
_ADMIN_VERDICTS = {
    "CreateProvider": ("ProviderWritten", "IdTaken", "NameTaken", "NotAllowed"),
    "UpdateProvider": ("ProviderWritten", "NameTaken", "NotAllowed", "UnknownProvider"),
    "DeleteProvider": ("Done", "HasChildren", "InventoryInUse", "UnknownProvider"),
    "SetInventories": ("ProviderWritten", "GenerationMoved", "InventoryInUse", "UnknownClass"),
    "PutInventory": ("ProviderWritten", "GenerationMoved", "InventoryPresent", "InventoryAbsent"),
    "DropInventory": ("ProviderWritten", "InventoryInUse", "InventoryAbsent"),
    "SetTraits": ("ProviderWritten", "GenerationMoved", "UnknownTrait"),
    "SetAggregates": ("ProviderWritten", "GenerationMoved"),
    "SetAllocations": ("Done", "ConsumerMoved", "DoesNotFit", "UnknownProvider"),
    "DeleteAllocations": ("Done", "UnknownConsumer"),
    "Reshape": ("Done", "GenerationMoved", "ConsumerMoved", "InventoryInUse"),
    "CreateTrait": ("Done", "AlreadyThere"),
    "DeleteTrait": ("Done", "NameInUse", "UnknownTrait"),
    "CreateClass": ("Done", "AlreadyThere"),
    "RenameClass": ("Done", "NameInUse", "UnknownClass"),
    "DeleteClass": ("UnknownClass",),
}
# A write that arrives twice is applied once.
_AGAIN = ("CreateProvider / IdTaken", "SetAllocations / ConsumerMoved", "Reshape / GenerationMoved")

_WAYS = (
    *("from groups", "from a plain request", "isolated", "in one subtree", "on a flat host", "by a swap"),
    *("in a zone", "in an aggregate", "outside an aggregate", "with a capability", "by another package"),
    *(
        "with a cell",
        "with two cells",
        "with dedicated processors",
        "in huge pages",
        "with a virtual function",
    ),
    *("with a physical function", "with a type of a GPU"),
    *("with a device: required", "with a device: legacy", "with a device: preferred"),
    *("with a port", "with a volume", "an alternate with two", "another way of one host"),
)

_MOVES = (
    *(f"{kind} waits" for kind in ("migrate", "live-migrate", "unshelve", "evacuate")),
    *(f"waited, then {end}" for end in ("begun", "aborted", "failed")),
    "waits again",
    *(
        f"{kind} {outcome}"
        for kind in ("migrate", "resize")
        for outcome in ("confirmed", "reverted", "aborted", "failed")
    ),
    *(f"live-migrate {outcome}" for outcome in ("confirmed", "aborted", "failed")),
    *("evacuate confirmed", "received", "received live", "shelve done", "unshelve done"),
    *("stop done", "stop failed", "start done", "reboot done", "reboot failed"),
    *(f"offload {outcome}" for outcome in ("done", "aborted", "failed")),
    *("unshelve aborted", "unshelve failed", "built from its image"),
    *("a migration holds the rest", "a cleanup holds the rest", "a way back", "nothing is left over"),
)

# No hook runs here, so no host is restarted.
_KEEPING = (
    *(f"{kind} begun" for kind in ("drain", "evacuate", "balance")),
    *(f"a campaign is {life}" for life in ("running", "paused", "stopped", "cancelled", "done", "rehearsed")),
    *(f"a host is {stage}" for stage in ("waiting", "emptying", "done", "failed", "skipped")),
    *(f"a host is {stage}" for stage in ("lost", "held", "fencing", "fenced", "asked")),
    *(f"answered {answer}" for answer in ("off", "again", "leave", "evacuate")),
    *(f"a movement is {life}" for life in ("planned", "granted", "moving", "done", "given_up", "withdrawn")),
    *("ordered", "ordered again"),
)

EVERYTHING: tuple[tuple[str, str], ...] = (
    *(("fault", each) for each in (*ALL_FAULTS, *CONSEQUENCES)),
    *(("fault", each) for each in DAEMON_FAULTS),
    *(("flip", f"{action} done") for _, actions in EPISODES for action in actions),
    ("flip", "vanish done"),
    ("flip", "arrive done"),
    (NODE, "an instance in error without it"),
    *(("host", each) for each in HOST_FAULTS),
    *((VERDICT, each) for each in VERDICTS),
    *((RESHAPE, each) for each in ("ReportAccepted", "ShapeMoved")),
    # Heartbeats of whole processes and questions for screens: no process here has the part that sends or asks them.
    *(
        ("type", type_of(kind))
        for kind in ALL
        if kind not in (*_OF_SCREENS, *_OF_CONSOLES, *_OF_IMPORTS, *_OF_FEWER_HOSTS, *_OF_BUGS)
    ),
    *((WRITE, f"{write} / {verdict}") for write, verdicts in _ADMIN_VERDICTS.items() for verdict in verdicts),
    *((AGAIN, each) for each in _AGAIN),
    *((TOGETHER, each) for each in ("CreateProvider", "SetAllocations")),
    *(("view", each) for each in ("compared", "compared while others wrote")),
    ("candidates", "found"),
    (FEED, "compared"),
    ("limit", "reached"),
    *((QUOTA, each) for each in ("set", "a limit below what is used", "grown below the limit")),
    (QUOTA, "a smaller instance counts its old size"),
    *(("outage", each) for each in ("a boot went elsewhere", "told")),
    *(("host", each) for each in ("waits for its turn", "rebuilds", "fails to rebuild")),
    *(("pool", each) for each in ("claimed", "swapped", "ran out")),
    *((MOVE, each) for each in _MOVES),
    *((KEEPING, each) for each in _KEEPING),
    *((WHOLE, each) for each in ("all claimed", "all placed", "none placed")),
    *(
        (GROUP, each)
        for each in ("kept apart", "kept together", "leaves with others", "a cleanup is a member")
    ),
    *((WAYS, each) for each in _WAYS),
    *((FLAVOR, each) for each in ("large", "medium", "small", "medium, after it waited")),
    *((FLAVOR, each) for each in ("an alternate with another one", "taken by the cell")),
    ("host", "builds failed in a row"),
    *(("host mode", each) for each in ("up", "draining", "down", "dead", "unknown host", "cleaned")),
    *((CELL_PAIR, f"{state} / {word}") for state, words in _CELL_PAIRS.items() for word in words),
    *((REQUEST_PAIR, f"{state} / {word}") for state, words in _REQUEST_PAIRS.items() for word in words),
)
