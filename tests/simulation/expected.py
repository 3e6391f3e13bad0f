"""What the seeds of the test command have to have seen together: every fault, verdict, message, and pair that can happen."""

from bus.message import type_of
from bus.messages import ALL
from tests.simulation.drawing_nodes import EPISODES
from tests.simulation.faults import EVERY_CONSEQUENCE, EVERY_KIND, OF_DAEMONS, OF_HOSTS
from tests.simulation.nodes import BACK, CLAIMED, LEFT, NODE
from tests.simulation.pairs import CELL_PAIR, REQUEST_PAIR, VERDICT
from tests.simulation.register import AGAIN, TOGETHER, WRITE

# In every single seed that is of no bare metal.
IN_EACH_SEED = (
    ("fault", "duplicate"),
    ("fault", "redelivered"),
    ("fault", "scheduler_down"),
    ("fault", "placement_down"),
    ("verdict", "Claimed"),
    ("verdict", "Released"),
    ("type", "swap"),
    ("type", "destroy"),
    ("type", "spawn.failed"),
    ("type", "remove"),
    ("view", "looked into"),
    (WRITE, "CreateProvider / ProviderWritten"),
)

# In every single seed of bare metal.
IN_EACH_SEED_OF_NODES = (
    *((NODE, what) for what in (LEFT, BACK, CLAIMED, "taken over", "handed over")),
    *(("order", what) for what in ("patch", "active", "deleted")),
    ("fault", "duplicate"),
    ("fault", "crash"),
    ("fault", "pause"),
    ("fault", "ironic_away"),
)

VERDICTS = (
    *("Claimed", "AlreadyClaimed", "DoesNotFit", "MovedRoots", "Superseded", "Released"),
    *("TooOld", "NotAllowed"),
)

_WORDS = ("PlaceInCell", "RemoveFromCell", "InstanceSpawned", "SpawnFailed", "InstanceDestroyed", "Due")
# What is too rare to be asked of so few seeds: a swap that is answered when somebody else has it answered already, an
# old attempt's word that comes just between two others, an order that comes again when all has failed.
_IN_CELLS = {
    "unknown": ("PlaceInCell", "RemoveFromCell"),
    "building": _WORDS,
    "swapping": (*(word for word in _WORDS if word != "InstanceSpawned"), "SwapAnswered"),
    "active": (*_WORDS, "RebuildInCell"),
    "rebuilding": ("RebuildInCell", "RemoveFromCell", "InstanceRedeployed", "DeployProgressed"),
    "broken": ("RebuildInCell", "InstanceRedeployed"),
    "error": ("RemoveFromCell", "InstanceDestroyed", "Due"),
    "deleting": tuple(word for word in _WORDS if word != "SpawnFailed"),
    "deleted": tuple(word for word in _WORDS if word != "SpawnFailed"),
}
_OF_REQUESTS = {
    "unknown": ("DeleteInstance",),
    "accepted": ("BuildInstance", "DeleteInstance", "a host was found", "no host was found"),
    "placed": ("BuildInstance", "DeleteInstance", "a host was found", "InstanceActive", "InstanceFailed"),
    "active": ("BuildInstance", "DeleteInstance", "InstanceActive", "RebuildInstance"),
    "rebuilding": ("RebuildInstance", "DeleteInstance", "InstanceActive", "InstanceFailed"),
    "error": ("BuildInstance", "DeleteInstance", "InstanceFailed"),
    "deleting": ("BuildInstance", "DeleteInstance", "InstanceActive", "InstanceDeleted"),
    "deleted": (
        "BuildInstance",
        "DeleteInstance",
        "a host was found",
        "no host was found",
        "InstanceActive",
        "InstanceDeleted",
    ),
}

# Without what two hundred seeds see a few times only.
_BY_NAME = {
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
# What comes twice in the same words is not done twice.
_AGAIN = ("CreateProvider / IdTaken", "SetAllocations / ConsumerMoved", "Reshape / GenerationMoved")

EVERYTHING: tuple[tuple[str, str], ...] = (
    *(("fault", each) for each in (*EVERY_KIND, *EVERY_CONSEQUENCE)),
    *(("fault", each) for each in OF_DAEMONS),
    *(("flip", f"{deed} done") for _, deeds in EPISODES for deed in deeds),
    *(("host", each) for each in OF_HOSTS),
    *((VERDICT, each) for each in VERDICTS),
    *(("type", type_of(kind)) for kind in ALL),
    *((WRITE, f"{write} / {verdict}") for write, verdicts in _BY_NAME.items() for verdict in verdicts),
    *((AGAIN, each) for each in _AGAIN),
    *((TOGETHER, each) for each in ("CreateProvider", "SetAllocations")),
    *(("view", each) for each in ("looked into", "looked into while others wrote")),
    ("candidates", "found"),
    ("limit", "reached"),
    *((CELL_PAIR, f"{state} / {word}") for state, words in _IN_CELLS.items() for word in words),
    *((REQUEST_PAIR, f"{state} / {word}") for state, words in _OF_REQUESTS.items() for word in words),
)
