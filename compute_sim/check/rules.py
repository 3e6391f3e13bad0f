"""The table of the rules that a compute is checked for. docs/write-a-compute.md says them for people."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from compute_sim.check import host_rules, order_rules
from compute_sim.check.session import CheckSession

Test = Callable[[CheckSession], Awaitable[None]]


class Rule(Struct, frozen=True):
    """`needs` names the option without which the rule cannot be tried."""

    name: str
    says: str
    test: Test
    needs: str = ""


RULES = (
    Rule("report", "it reports the inventories of its host", host_rules.reports),
    Rule("facts", "it tells what its host is", host_rules.tells_facts),
    Rule("spawn", "it builds an instance, and lists it", order_rules.spawns),
    Rule(
        "spawn again", "a repeated order gets the same answer and builds nothing", order_rules.repeats_spawn
    ),
    Rule("destroy", "it destroys an attempt, and answers again", order_rules.destroys),
    Rule("destroy unknown", "it confirms to destroy what it does not have", order_rules.destroys_unknown),
    Rule("never again", "a destroyed attempt never runs", order_rules.never_runs_again),
    Rule("stop and start", "it stops and starts an instance", order_rules.stops_and_starts),
    Rule(
        "numbers", "of orders that overtake each other, the later number counts", order_rules.goes_by_numbers
    ),
    Rule("rebuild", "it builds an instance anew from another image", order_rules.rebuilds),
    Rule("resize", "it takes over an instance on its own host", order_rules.resizes),
    Rule("stopped", "it builds and receives what does not run, and starts it", order_rules.builds_stopped),
    Rule("save", "it saves a stopped instance as an image", order_rules.saves),
    Rule(
        "refusals", "it refuses orders about what it does not have, and builds nothing", order_rules.refuses
    ),
    Rule(
        "receive",
        "it receives only what its source has and has stopped",
        order_rules.receives_only_what_is_stopped,
    ),
    Rule("interrupted", "it obeys an order while it carries out another one", order_rules.is_interrupted),
    Rule(
        "move",
        "it moves an instance to its other host, stopped and live",
        order_rules.moves,
        "a second --host",
    ),
    Rule("host.check", "it lists its attempts in pages", host_rules.lists),
    Rule("other host", "it refuses orders for a host that it does not have", host_rules.has_no_foreign_host),
    Rule("share", "it answers an order whose share it cannot give", host_rules.survives_an_impossible_share),
    Rule(
        "old share",
        "it obeys orders whose share is on providers that its host has no more",
        order_rules.obeys_with_an_old_share,
    ),
    Rule("no JSON", "what is not JSON becomes a dead letter", host_rules.buries_no_json),
    Rule(
        "unknown order",
        "an order that it does not know becomes a dead letter",
        host_rules.buries_unknown_orders,
    ),
    Rule("parcel", "it obeys each of several orders in one parcel", host_rules.reads_parcels),
    Rule("restart", "a restart changes nothing of what it has", host_rules.keeps_over_a_restart, "--restart"),
    Rule(
        "same shape",
        "a restart reports the same providers by the same ids",
        host_rules.reports_the_same_shape,
        "--restart",
    ),
    Rule(
        "restart between",
        "a restart in the middle loses no order and no answer",
        host_rules.answers_before_it_acknowledges,
        "--restart",
    ),
    Rule("heartbeats", "it tells regularly that its host lives", host_rules.lives),
)
