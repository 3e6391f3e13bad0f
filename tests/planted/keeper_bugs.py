"""Planted bugs in the keeper: budgets, grants, campaigns and their hosts."""

from typing import Any

from cell_conductor.core.rows import HostStates
from keeper import handlers, hooks, recovering, store_sql
from keeper.core import campaigns, fencing, grants, policies, recovery
from keeper.granting import Granting
from keeper.handlers import Orders
from keeper.keeping import CampaignDriver
from keeper.recovering import Recovery
from scheduler_worker.core.instances import moves
from tests.planted.replacing import planted_as, rewritten


def _changed(
    name: str, owner: Any, function: str, part: str, by: str, harm: str = "", world: str = ""
) -> None:
    planted_as(name, world=world, harm=harm)(lambda: rewritten(owner, function, part, by))


# Each wish is judged by what went on before the batch, and not by what was granted in it.
_changed(
    "a batch of grants exceeds its budget",
    grants,
    "decide_grants",
    "            use.add(begun)",
    "            pass",
    "overbooked",
)
_changed(
    "a budget does not count what comes", grants, "_sides", '"": [left, reached]', '"": [left]', "overbooked"
)
_changed(
    "a budget of a domain counts those that begin like it",
    grants,
    "subjects_of",
    "is_within(each, budget.of)",
    "each.startswith(budget.of)",
)
_changed(
    "half a group is granted",
    grants,
    "decide_grants",
    "        if why:\n",
    "        if why and not first.together:\n",
    "overbooked",
)
_changed(
    "a quiet night ends at midnight",
    grants,
    "quiet_until",
    "(minute >= begin or minute < end)",
    "(minute >= begin)",
)
_changed(
    "the last of a group leave though a minimum must stay",
    grants,
    "decide_grants",
    "            alive[first.group] -= size",
    "            pass",
    "lost",
)
_changed(
    "guests of a campaign move without end",
    grants,
    "decide_grants",
    "            of_campaigns[first.campaign] += size",
    "            pass",
    "overbooked",
)
# What another keeper granted since the plan was made is granted once more, under another request.
_changed(
    *("what was granted meanwhile is granted again", Granting, "_decided"),
    *("if stored.get(each.id) == was[each.id]", "if each.id in stored", "doubled"),
)
_changed(
    *("an order takes an instance from where a person has put it", moves, "_problem_with_values"),
    *("if order.source and not", "if False and not", "doubled"),
)
_changed("one that fails is tried for ever", campaigns, "failed", "if failures < FAILURES_MAX", "if True")
_changed(
    "a host with guests counts as empty", campaigns, "after_listing", "elif stays:", "elif False:", "lost"
)
_changed(
    "a host to which a guest is on its way counts as empty",
    campaigns,
    "after_listing",
    "elif kept or not claimed:",
    "elif True:",
    "lost",
)
_changed(
    "a canary that dies holds up nobody",
    campaigns,
    "ends_as",
    'if failed and stages.get("done", 0) < canary',
    "if False",
)
_changed(
    "a host is taken back before it is heard",
    campaigns,
    "returned",
    "told.heard_at > since",
    "told.heard_at is not None",
)
# The database's index refuses it, so nothing is doubled; but the order is buried, and nobody is told why.
_changed(
    "a host is in two campaigns",
    handlers,
    "begin_campaign",
    "if taken and not (join and free)",
    "if False",
)
_changed(
    "a campaign of a dead keeper stands still",
    store_sql,
    "take",
    "(campaigns.c.held_until <= now)",
    "sa.false()",
    "lost",
)
_changed(
    "a hook that hangs is waited for", hooks, "_run", "asyncio.timeout(within_s)", "asyncio.timeout(None)"
)
_changed(
    "a paused campaign goes on",
    CampaignDriver,
    "_work_on",
    'if campaign.life == "running":',
    'if campaign.life != "cancelled":',
)
_changed(
    "events of campaigns are lost",
    CampaignDriver,
    "_say",
    "if not messages or not",
    "if True or not",
    "lost",
    "keeping",
)
# Fences: what is taken for off may run, and its guests would run twice.
_changed(
    "a host whose fence failed is taken for off",
    fencing,
    "after_fence",
    "    if why:",
    "    if False:",
    "doubled",
)
_changed(
    "a host that is heard after its fence is taken for off",
    fencing,
    "after_fenced",
    "told.heard_at > since",
    "False",
    "doubled",
)
_changed(
    "a host is emptied before its cell knows that it is dead",
    fencing,
    "after_fenced",
    "told.told < told.setting.number",
    "False",
)
_changed(
    "a question is answered that does not matter any more",
    Orders,
    "_answer",
    'if known.life != "open":',
    "if False:",
    "doubled",
)

# Lost hosts.

_changed(
    "a host that its cell hears is taken for lost",
    recovery,
    "is_silent",
    "        and host.silent_in_cell\n",
    "",
    "doubled",
)
_changed(
    "a host that was set down by a person is taken for lost",
    recovery,
    "is_silent",
    'host.setting.mode in ("up", "draining")',
    "True",
)
_changed(
    "a host is lost before the time of its policy",
    recovery,
    "is_due",
    "max(timedelta(seconds=suspect.rule.after_s), soonest)",
    "soonest",
)
_changed("one host more is recovered than is allowed", recovery, "losses", "count > most", "count > most + 1")
_changed("losses of before do not count", recovery, "losses", "*before, ", "")
_changed(
    "a domain that is silent as a whole is not asked about",
    recovery,
    "losses",
    "(domain := dead_domains.get(each.host.id)) and each.group not in held",
    'domain := ""',
)
_changed(
    "a loss is decided on by each keeper",
    Recovery,
    "_begin",
    "(each.id, each.lost_at) not in decided and ",
    "",
    "doubled",
)
_changed(
    "hosts that a person is asked about are emptied all the same",
    Recovery,
    "_as_begun",
    'staged(host, "held", now, loss.why) if loss.why else host',
    "host",
    "doubled",
)
_changed("a rehearsal is no rehearsal", Recovery, "_as_begun", "suspect.rule.rehearse", "False")
_changed(
    "guests leave a lost host whatever their policies say",
    recovering,
    "kept_by_policy",
    'rule.guests == "evacuate"',
    "True",
    "unauthorised",
)
_changed(
    "the wider policy counts",
    policies,
    "width_of",
    "SCOPES.index(policy.scope)",
    "-SCOPES.index(policy.scope)",
)
_changed(
    "a lost host without a fence is emptied, and nobody is asked",
    fencing,
    "begun",
    "work.by_policy and not host.unfenced",
    "False",
    "doubled",
)
_changed(
    "what a drain has moving from a lost host is forgotten",
    recovery,
    "taken_over",
    "movement.life in GOING",
    "False",
    "lost",
)
_changed(
    "an evacuation is made whatever its host was set to since",
    HostStates,
    "why_not_as_of",
    "epoch is None or number == epoch",
    "True",
    "doubled",
)
_changed(
    "a campaign grants from hosts that it does not empty any more",
    Granting,
    "grant",
    "if (each.cell, each.host) in names",
    "",
)
