"""Questions about instances that were placed or refused: how their hosts were chosen, and whether they would fit
elsewhere.

All that an explanation needs is on the instance's row. So any scheduler can answer, whether it made the choice or
another did, after a restart too, and for as long as the row lives.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from bus.message import ConsumerId, GroupId, Message
from bus.messages.build import InstanceId, NoValidHost
from bus.messages.hosts import cell_and_name, host_in_cell, names_clash
from bus.messages.planning import (
    AskDrain,
    AskExplanation,
    DrainedInstance,
    DrainFound,
    Explanation,
    ExplanationsFound,
    HostChoice,
    PlanFound,
)
from bus.workers.handling import Handlers, answering
from scheduler_worker.core.choosing.choosing import Chosen
from scheduler_worker.core.choosing.planning import (
    drain,
    drain_together,
    has_other_hosts,
    plan,
    plan_flavors,
    quota_room,
    with_quota,
)
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.instances.moves import why_stays_on_node
from scheduler_worker.core.instances.outcomes import in_words
from scheduler_worker.core.instances.rows import ERROR, HostDecision, InstanceRow
from scheduler_worker.core.instances.specs import alternatives_in, decoded
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.questions.quotas import Ask, quota_of
from scheduler_worker.requests.answering import rejection
from scheduler_worker.store import InstanceQuery, SchedulerStore

DRAINED_MAX = 200
# The picture holds the choices of a plan by this attempt while the plan is made: no claim has it.
_PLANNED = 0


class Explainer:
    def __init__(self, store: SchedulerStore, picture: Picture, plugins: Plugins, ask: Ask) -> None:
        self._store = store
        self._picture = picture
        self._plugins = plugins
        self._ask = ask

    def question_handlers(self) -> Handlers:
        return {AskExplanation: answering(self._explanations), AskDrain: answering(self._drain)}

    async def _explanations(self, question: AskExplanation) -> Message:
        if question.request_id is None and question.instance is None:
            return rejection("request_id", "", "give it or instance: nothing is asked about")
        found = await self._store.instances(
            InstanceQuery(
                instances=() if question.instance is None else (question.instance,),
                request_id=question.request_id,
                after=question.after,
                project=question.project,
                limit=question.limit + 1,
            )
        )
        page = found[: question.limit]
        planned = await self._planned(page[0]) if page and question.plan_now else None
        return ExplanationsFound(
            explanations=tuple(map(_explanation, page)),
            plan=planned,
            next=page[-1].id if len(found) > question.limit else None,
        )

    async def _planned(self, row: InstanceRow) -> PlanFound | None:
        """The plan for the needs of this instance; if its request accepts several flavors, for all of these."""
        is_resized = row.resized_spec and not row.told.passed_over
        if not is_resized and (alternatives := alternatives_in(row.spec)):
            quota = await quota_of(self._ask, row.told.project)
            return with_quota(plan_flavors(self._picture, alternatives, self._plugins), alternatives, quota)
        if (spec := decoded(row.current_spec)) is None:
            return None
        quota = await quota_of(self._ask, row.told.project)
        room = None if quota is None else quota_room(spec, quota)
        return structs.replace(plan(self._picture, spec, self._plugins), quota=room)

    async def _drain(self, question: AskDrain) -> Message:
        host = question.host
        columns = self._picture.columns
        named = cell_and_name(host)[1]
        rows_named = self._picture.rows_named(host.lower())
        if not {host, named} & {columns.names[row] for row in rows_named}:
            return rejection("host", host, "no host of this name is known")
        cells = self._picture.cells_named(host)
        if len(cells) > 1:
            return rejection("host", host, names_clash(host, cells))
        name = next(columns.names[row] for row in rows_named)
        there = host_in_cell(cells[0], name)
        found = await self._store.instances(InstanceQuery(host=there, limit=DRAINED_MAX + 1))
        rows = [
            row
            for row in found[:DRAINED_MAX]
            # In error, only an instance whose rebuild failed is still there.
            if row.told.state != ERROR or row.told.rebuild is not None
        ]
        instances = self._drained(cells[0], name, rows)
        return DrainFound(
            host=host,
            fit=sum(bool(each.to) for each in instances),
            instances=tuple(instances),
            more=len(found) > DRAINED_MAX,
        )

    def _drained(self, cell: str, host: str, rows: Sequence[InstanceRow]) -> list[DrainedInstance]:
        why = self._why_all_stay(cell, host)
        reasons = dict.fromkeys([row.id for row in rows], why) if why else {}
        known = {
            # Hosts that the boot named do not bind a move.
            row.id: structs.replace(spec, hosts=(), cell=cell, count=1)
            for row in rows
            if row.id not in reasons and (spec := decoded(row.current_spec)) is not None
        }
        to: dict[InstanceId, tuple[str, str]] = {}
        for instance, outcome in self._chosen(host_in_cell(cell, host), known).items():
            if isinstance(outcome, NoValidHost):
                reasons[instance] = in_words(outcome)
            else:
                to[instance] = outcome.choice.name, outcome.cell
        unknown = "its needs are not known: it was requested before schedulers kept them"
        return [
            DrainedInstance(
                id=row.id,
                name=row.told.name,
                project=row.told.project,
                to=to.get(row.id, ("", ""))[0],
                cell=to.get(row.id, ("", ""))[1],
                reason="" if row.id in to else reasons.get(row.id, unknown),
            )
            for row in rows
        ]

    def _chosen(
        self, host: str, known: Mapping[InstanceId, InstanceSpec]
    ) -> dict[InstanceId, Chosen | NoValidHost]:
        """Another host for each of these instances of the host (`c1/h1`), as if all left it at once. The members of an
        affinity group leave together, for one host: they are chosen first, and count as there for all others.
        """
        here = {self._picture.columns.ids[row] for row in self._picture.rows_named(host.lower())}
        outcomes: dict[InstanceId, Chosen | NoValidHost] = {}
        alone = dict(known)
        held: list[tuple[ConsumerId, int]] = []
        try:
            for group, ids in _by_affinity(known).items():
                members = self._picture.groups.of_group(group)
                if any(each.host not in here for each in members):
                    continue
                specs = [structs.replace(known[id_], server_group=None) for id_ in ids]
                if len(ids) == 1:
                    alone[ids[0]] = specs[0]
                    continue
                for id_ in ids:
                    del alone[id_]
                chosen = drain_together(self._picture, host, specs, self._plugins, salt=0)
                outcomes.update(zip(ids, chosen, strict=True))
                shares = [
                    (id_, _PLANNED, each.choice.share)
                    for id_, each in zip(ids, chosen, strict=True)
                    if isinstance(each, Chosen)
                ]
                held += [(id_, attempt) for id_, attempt, _ in shares]
                self._picture.hold(shares)
            chosen = drain(self._picture, host, [*alone.values()], self._plugins, salt=0)
        finally:
            self._picture.drop(held)
        return {**outcomes, **dict(zip(alone, chosen, strict=True))}

    def _why_all_stay(self, cell: str, host: str) -> str:
        """Why no host is looked for; empty if there may be one."""
        if self._picture.is_node(cell, host):
            return why_stays_on_node(host, "migrate")
        if not has_other_hosts(self._picture, cell, host):
            return f"cell {cell} has no other host, and an instance moves only within its cell"
        return ""


def _by_affinity(specs: Mapping[InstanceId, InstanceSpec]) -> dict[GroupId, list[InstanceId]]:
    """The members of each affinity group among these instances."""
    groups: dict[GroupId, list[InstanceId]] = {}
    for id_, spec in specs.items():
        if spec.server_group is not None and spec.server_group.policy == "affinity":
            groups.setdefault(spec.server_group.id, []).append(id_)
    return groups


def _explanation(row: InstanceRow) -> Explanation:
    boot = _choice(row.decision)
    if row.move_decision is None:
        return Explanation(state=row.told, **structs.asdict(boot))
    return Explanation(state=row.told, boot=boot, **structs.asdict(_choice(row.move_decision)))


def _choice(decision: HostDecision | None) -> HostChoice:
    """A choice as it is told; that of the boot if there is none."""
    if decision is None:
        return HostChoice()
    return HostChoice(
        chosen_at=decision.at,
        hosts=decision.hosts,
        qualified=decision.qualified,
        chosen=decision.host,
        alternates=decision.alternates,
        what=decision.what,
        request_id=decision.request_id,
    )
