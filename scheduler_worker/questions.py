"""Questions about instances, moves, plans and capabilities, and the answer to a message that cannot be read."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from msgspec import structs

from bus.message import Message, type_of
from bus.messages.books import AskQuotas, QuotasFound
from bus.messages.build import AskInstances, BuildInstance, BuildRejected, InstancesFound, MoveKind
from bus.messages.cloud import page_that_fits
from bus.messages.moves import AskHistory, AskMoves, HistoryFound, MovePlace, MovesFound
from bus.messages.planning import (
    AskCapabilities,
    AskDrain,
    AskExplanation,
    AskPlan,
    AskReasons,
    DrainedInstance,
    DrainFound,
    Explanation,
    ExplanationsFound,
    HostChoice,
    PlanFound,
    ReasonsFound,
)
from bus.topology import CELL0
from bus.unreadable import Unreadable
from bus.workers.handlers import Answer, Bury, Handlers, Received, Said, answering
from engine.choosing.choosing import Chosen
from engine.choosing.explaining import in_words
from engine.choosing.planning import (
    QUALIFY,
    drain,
    drain_together,
    has_other_hosts,
    plan,
    plan_flavors,
    reasons,
)
from engine.choosing.plugins import Plugins
from engine.flavors import InstanceId, RequestId
from engine.hosts import cell_and_name, host_in_cell, names_clash
from engine.inventories import ConsumerId, GroupId, QuotaState
from engine.picture.picture import Picture
from engine.refusals import NoValidHost, PlannedFlavor
from engine.requests import Alternative, InstanceSpec, lowered, with_specs
from engine.requests.spec import of_mover
from kit.errors import WrongAnswer
from scheduler_worker.cells import CellRegistry
from scheduler_worker.core.capabilities import capabilities, hosts_having
from scheduler_worker.core.instances.history import alternatives_in, boot_of, decoded, details_of, with_end
from scheduler_worker.core.instances.moves import why_busy, why_stays_on_node
from scheduler_worker.core.instances.rows import ERROR, OFFLOADED, SHELVED, HostDecision, InstanceRow
from scheduler_worker.host_orders import instances_on
from scheduler_worker.requests.catalog import with_named
from scheduler_worker.requests.move_needs import why_not_from
from scheduler_worker.requests.reading import RequestReader, joined_group, rejected, rejection
from scheduler_worker.store_sql import ChangeQuery, InstanceQuery, SchedulerStore

# The fields that a question and the store's query have in common.
_ASKED = tuple(name for name in InstanceQuery.__struct_fields__ if name in AskInstances.__struct_fields__)


def instance_questions(store: SchedulerStore, cells: CellRegistry) -> Handlers:
    return {
        AskInstances: answering(partial(_instances, store, cells)),
        AskHistory: answering(partial(_history, store)),
        AskMoves: answering(partial(_moves, store)),
    }


async def _instances(
    store: SchedulerStore, cells: CellRegistry, question: AskInstances
) -> InstancesFound | BuildRejected:
    query = InstanceQuery(**{name: getattr(question, name) for name in _ASKED})
    found = await store.instance_page(query)
    if found is None:
        return rejection(
            "after", question.after, "there is no such instance any more: begin with the first page again"
        )
    count, more_than = await store.counted(query) if question.counted else (None, False)
    rows = [(row.told, details_of(row)) for row in found.rows]
    fit = page_that_fits(rows) if rows else ()
    page = tuple([told for told, _ in fit])
    return InstancesFound(
        instances=page,
        next=found.next if len(fit) == len(rows) else page[-1].id,
        cells=tuple([cells.heard(cell) for cell in sorted({each.cell for each in page} - {"", CELL0})]),
        details=tuple([details for _, details in fit]),
        count=count,
        more_than=more_than,
    )


BURIED = (
    "workers failed at it, so it is among the dead letters now; what it asks for may have been done in part"
)


async def on_unreadable_orders(asks: Sequence[Received[Unreadable]]) -> list[Said]:
    """A build request that cannot be read is rejected like an invalid one. Any other order becomes a dead letter, for a
    person to look at, and its sender gets an answer. A message without a type may be either: it is rejected, and
    becomes a dead letter.
    """
    said: list[Said] = []
    for ask in asks:
        why = _why_not(ask.message)
        if ask.message.kind in (type_of(BuildInstance), ""):
            said += rejected(ask, why)
        else:
            said.append(Answer(ask, why))
        if ask.message.kind != type_of(BuildInstance):
            said.append(Bury(ask, why.reason))
    return said


async def on_unreadable_questions(asks: Sequence[Received[Unreadable]]) -> list[Said]:
    said: list[Said] = []
    for ask in asks:
        why = _why_not(ask.message)
        said += [Answer(ask, why), Bury(ask, why.reason)]
    return said


async def on_buried(asks: Sequence[Received[Message]], _: object) -> list[Said]:
    """Answer what becomes a dead letter because workers failed at it: whoever asked need not wait until its time is up."""
    said: list[Said] = []
    for ask in asks:
        request_id = getattr(ask.message, "request_id", None)
        said.append(
            Answer(ask, BuildRejected(request_id=request_id, field="message", value="", reason=BURIED))
        )
    return said


def _why_not(wrong: Unreadable) -> BuildRejected:
    return BuildRejected(
        request_id=None if wrong.request_id is None else RequestId(wrong.request_id),
        field=wrong.field or "message",
        value=wrong.value,
        reason=wrong.reason,
        project=wrong.project,
    )


# Questions about what was ordered for instances, and about moves.


async def _history(store: SchedulerStore, question: AskHistory) -> HistoryFound:
    rows = await store.instances(
        InstanceQuery(instances=(question.instance,), project=question.project, limit=1)
    )
    if not rows:
        return HistoryFound(instance=None)
    (row,) = rows
    found = await store.changes(
        ChangeQuery(instance=question.instance, after=question.after, ended=True, limit=question.limit + 1)
    )
    page = [with_end(change, row) for change in found[: question.limit]]
    return HistoryFound(
        instance=row.told,
        changes=(*(() if question.after else (boot_of(row),)), *page),
        next=page[-1].number if len(found) > question.limit else 0,
    )


async def _moves(store: SchedulerStore, question: AskMoves) -> MovesFound:
    found = await store.changes(
        ChangeQuery(host=question.host, ended=question.ended, behind=question.after, limit=question.limit + 1)
    )
    page = found[: question.limit]
    return MovesFound(
        moves=tuple(page),
        next=MovePlace(page[-1].asked_at, page[-1].instance) if len(found) > question.limit else None,
    )


# Asks placement for the quota of a project, for plans.


Ask = Callable[[Message], Awaitable[Message]]


async def quota_of(ask: Ask, project: str) -> QuotaState | None:
    """The project's quota; None if it has no limits, or if no project is named."""
    if not project:
        return None
    answer = await ask(AskQuotas(project=project))
    if not isinstance(answer, QuotasFound):
        raise WrongAnswer(f"placement answered a question for a quota by {answer!r}")
    return next(iter(answer.quotas), None)


DRAINED_MAX = 200
# How the reason begins of an instance that cannot move now.
BUSY = "busy: "
# Instances in these states do not leave them by themselves.
STAYING = (SHELVED, OFFLOADED, ERROR)
UNKNOWN = "its needs are not known: it was requested before schedulers kept them"
# The picture holds the choices of a plan by this attempt while the plan is made: no claim has it.
_PLANNED = 0


def _found(plans: Sequence[PlannedFlavor]) -> PlanFound:
    """The plans for the flavors of a request, the best first, as a message. The flavor of a request is named if it accepts
    several.
    """
    best, *others = plans
    return PlanFound(
        **structs.asdict(best if others else structs.replace(best, flavor="")), alternatives=tuple(others)
    )


def _by_affinity(specs: Mapping[InstanceId, InstanceSpec]) -> dict[GroupId, list[InstanceId]]:
    """The members of each affinity group among these instances."""
    groups: dict[GroupId, list[InstanceId]] = {}
    for id_, spec in specs.items():
        if spec.server_group is not None and spec.server_group.policy == "affinity":
            groups.setdefault(spec.server_group.id, []).append(id_)
    return groups


def _drained_instance(
    row: InstanceRow, outcome: Chosen | NoValidHost | str, group: GroupId | None, picture: Picture
) -> DrainedInstance:
    drained = DrainedInstance(id=row.id, name=row.told.name, project=row.told.project, group=group)
    if isinstance(outcome, Chosen):
        place = picture.place_of(outcome.choice.share.host)
        return structs.replace(drained, to=outcome.choice.name, cell=outcome.cell, place=place)
    reason = outcome if isinstance(outcome, str) else in_words(outcome)
    return structs.replace(drained, reason=reason)


def _drain_found(host: str, instances: Sequence[DrainedInstance], *, more: bool = False) -> DrainFound:
    return DrainFound(
        host=host, fit=sum(bool(each.to) for each in instances), instances=tuple(instances), more=more
    )


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


# Questions about hosts for which nothing is claimed or written: plans, the verdict on every host, capabilities.
#
# Each is answered from the picture, at the cost of some passes over all hosts.


class Planner:
    def __init__(
        self, picture: Picture, plugins: Plugins, reader: RequestReader, store: SchedulerStore, ask: Ask
    ) -> None:
        self._picture = picture
        self._plugins = plugins
        self._reader = reader
        self._store = store
        self._ask = ask

    def question_handlers(self) -> Handlers:
        return {
            AskPlan: answering(self._plan),
            AskReasons: answering(self._reasons),
            AskCapabilities: answering(self._capabilities),
            AskExplanation: answering(self._explanations),
            AskDrain: answering(self._drain),
        }

    async def _plan(self, question: AskPlan) -> Message:
        request = question.request
        if question.project and request.project not in ("", question.project):
            reason = f"is not the project {question.project!r}, for which the plan is asked"
            return rejection("request.project", request.project, reason, request.request_id)
        project = request.project or question.project
        flavors = await self._flavors_of(structs.replace(request, project=project))
        if isinstance(flavors, BuildRejected):
            return flavors
        quota = await quota_of(self._ask, project)
        return _found(plan_flavors(self._picture, flavors, self._plugins, quota))

    async def _reasons(self, question: AskReasons) -> Message:
        known = [*dict.fromkeys(one.name for one in self._plugins.filters), QUALIFY]
        if question.step and question.step not in known:
            reason = f"there is no such step: known are {', '.join(known)}"
            return rejection("step", question.step, reason, question.request.request_id)
        flavors = await self._flavors_of(question.request)
        if isinstance(flavors, BuildRejected):
            return flavors
        verdicts, has_more = reasons(
            self._picture,
            flavors,
            self._plugins,
            step=question.step,
            after=question.after,
            limit=question.limit,
        )
        return ReasonsFound(hosts=tuple(verdicts), next=verdicts[-1].host if has_more else "")

    async def _capabilities(self, question: AskCapabilities) -> Message:
        if not question.having:
            if question.value:
                return rejection("value", question.value, "having is not given: this is a value of it")
            return capabilities(self._picture, after=question.after, limit=question.limit)
        found = hosts_having(
            self._picture, question.having, question.value, after=question.after, limit=question.limit
        )
        if isinstance(found, str):
            return rejection("having", question.having, found)
        return found

    async def _flavors_of(self, request: BuildInstance) -> tuple[Alternative, ...] | BuildRejected:
        """All flavors that the request accepts, the best first, with their needs."""
        for field in ("different_host", "same_host"):
            if ids := getattr(request, field):
                reason = "a plan reads no instances: name their hosts in hosts or ignore_hosts"
                return rejection(f"request.{field}", ", ".join(map(str, ids)), reason, request.request_id)
        named = await with_named(self._store, request)
        flavors = named if isinstance(named, BuildRejected) else self._reader.alternatives_of(named)
        if isinstance(flavors, BuildRejected):
            return structs.replace(flavors, field=f"request.{flavors.field}", request_id=request.request_id)
        if request.group is None:
            return flavors
        group = await joined_group(self._store, request, request.group)
        if isinstance(group, str):
            return rejection("request.group", request.group.id, group, request.request_id)
        return with_specs(flavors, lambda spec: structs.replace(spec, server_group=group))

    # Questions about instances that were placed or refused: how their hosts were chosen, and whether they would fit
    # elsewhere.
    #
    # All that an explanation needs is on the instance's row. So any scheduler can answer, whether it made the choice or
    # another did, after a restart too, and for as long as the row lives.

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
        by = await self._mover(page[0]) if page and question.instance is not None else ""
        return ExplanationsFound(
            explanations=tuple([structs.replace(_explanation(each), by=by) for each in page]),
            plan=planned,
            next=page[-1].id if len(found) > question.limit else None,
        )

    async def _mover(self, row: InstanceRow) -> str:
        """The user who ordered the last move that chose a host; empty if there was none."""
        if row.move_decision is None or row.move_decision.request_id is None:
            return ""
        asked = ChangeQuery(instance=row.id, request_id=row.move_decision.request_id, ended=True, limit=1)
        return next((each.by for each in await self._store.changes(asked)), "")

    async def _planned(self, row: InstanceRow) -> PlanFound | None:
        """The plan for the needs of this instance; if its request accepts several flavors, for all of these."""
        is_resized = row.resized_spec and not row.told.passed_over
        if not is_resized and (alternatives := alternatives_in(row.spec)):
            quota = await quota_of(self._ask, row.told.project)
            return _found(plan_flavors(self._picture, alternatives, self._plugins, quota))
        if (spec := decoded(row.current_spec)) is None:
            return None
        quota = await quota_of(self._ask, row.told.project)
        return _found((plan(self._picture, spec, self._plugins, quota),))

    async def _drain(self, question: AskDrain) -> Message:
        if question.wishes and len(question.wishes) != len(question.instances):
            why = f"{len(question.instances)} instances are named: one host for each of them, or none"
            return rejection("wishes", str(len(question.wishes)), why)
        if question.instances:
            return await self._drain_of(question)
        host = question.host
        columns = self._picture.columns
        named = cell_and_name(host)[1]
        rows_named = self._picture.rows_named(host.lower())
        if not {host, named} & {columns.names[row] for row in rows_named}:
            return rejection("host", host, self._picture.no_host(host))
        cells = self._picture.cells_named(host)
        if len(cells) > 1:
            return rejection("host", host, names_clash(host, cells))
        there = host_in_cell(cells[0], next(columns.names[row] for row in rows_named))
        found = await instances_on(self._store, there, DRAINED_MAX + 1)
        drained = self._drained(found[:DRAINED_MAX], question, {})
        return _drain_found(host, drained, more=len(found) > DRAINED_MAX)

    async def _drain_of(self, question: AskDrain) -> DrainFound:
        """The plan for the instances that the question names, of whatever hosts."""
        found = await self._store.rows_of(question.instances)
        kind: MoveKind = "evacuate" if question.evacuate else "migrate"
        busy = {
            id_: f"{BUSY if row.told.state not in STAYING else ''}{why}"
            for id_, row in found.items()
            if (why := self._why_busy(row, kind))
        }
        asked = dict.fromkeys(question.instances)
        drained = self._drained([found[id_] for id_ in asked if id_ in found], question, busy)
        none = [
            DrainedInstance(id=id_, reason=f"{BUSY}there is no such instance")
            for id_ in asked
            if id_ not in found
        ]
        return _drain_found(question.host, [*drained, *none])

    def _why_busy(self, row: InstanceRow, kind: MoveKind) -> str:
        if why := why_busy(row, kind):
            return why
        # A bare-metal node has its own reason, up or down.
        is_on_node = self._picture.is_node(row.told.cell, row.told.host)
        return "" if is_on_node else why_not_from(row.told, kind, self._picture)

    def _drained(
        self, rows: Sequence[InstanceRow], question: AskDrain, busy: Mapping[InstanceId, str]
    ) -> list[DrainedInstance]:
        places = {row.id: (row.told.cell, row.told.host) for row in rows if row.id not in busy}
        left = {place: self._why_all_stay(*place) for place in places.values()}
        reasons = {**busy, **{id_: why for id_, place in places.items() if (why := left[place])}}
        columns = self._picture.columns
        to_avoid = [row for each in question.avoid if (row := self._picture.row_of(each)) >= 0]
        away = [(columns.cells.names[int(columns.cell[row])], columns.names[row]) for row in to_avoid]
        avoided = lowered([host_in_cell(*place) for place in (*left, *away)])
        # Hosts that the boot named do not bind a move.
        allowed = lowered(question.to)
        wishes = {
            id_: lowered((wish,))
            for id_, wish in zip(question.instances, question.wishes, strict=False)
            if wish
        }
        known = {
            row.id: structs.replace(
                of_mover(spec, row.id, is_alone=False),
                hosts=wishes.get(row.id, allowed),
                ignore_hosts=(*spec.ignore_hosts, *avoided),
                cell=row.told.cell,
                count=1,
            )
            for row in rows
            if row.id not in reasons and (spec := decoded(row.current_spec)) is not None
        }
        outcomes, groups = self._chosen(places, known)
        return [
            _drained_instance(
                row,
                outcomes.get(row.id) or reasons.get(row.id, UNKNOWN),
                groups.get(row.id),
                self._picture,
            )
            for row in rows
        ]

    def _chosen(
        self, places: Mapping[InstanceId, tuple[str, str]], known: Mapping[InstanceId, InstanceSpec]
    ) -> tuple[dict[InstanceId, Chosen | NoValidHost], dict[InstanceId, GroupId]]:
        """Another host for each of these instances, as if all left theirs (`places`) at once; and the group of each that leaves
        together with others. The members of an affinity group leave together, for one host: they are chosen first, and count as
        there for all others.
        """
        outcomes: dict[InstanceId, Chosen | NoValidHost] = {}
        groups: dict[InstanceId, GroupId] = {}
        alone = dict(known)
        held: list[tuple[ConsumerId, int]] = []
        try:
            for group, ids in _by_affinity(known).items():
                here = {self._picture.columns.ids[row] for row in self._picture.rows_in(*places[ids[0]])}
                members = self._picture.groups.of_group(group)
                if any(each.host not in here for each in members):
                    continue
                specs = [of_mover(known[id_], id_, is_alone=True) for id_ in ids]
                if len(ids) == 1:
                    alone[ids[0]] = specs[0]
                    continue
                for id_ in ids:
                    del alone[id_]
                chosen = drain_together(self._picture, specs, self._plugins, salt=0)
                outcomes.update(zip(ids, chosen, strict=True))
                groups.update(dict.fromkeys(ids, group))
                shares = [
                    (id_, _PLANNED, each.choice.share)
                    for id_, each in zip(ids, chosen, strict=True)
                    if isinstance(each, Chosen)
                ]
                held += [(id_, attempt) for id_, attempt, _ in shares]
                self._picture.hold(shares)
            chosen = drain(self._picture, [*alone.values()], self._plugins, salt=0)
        finally:
            self._picture.drop(held)
        return {**outcomes, **dict(zip(alone, chosen, strict=True))}, groups

    def _why_all_stay(self, cell: str, host: str) -> str:
        """Why no host is looked for; empty if there may be one."""
        if self._picture.is_node(cell, host):
            return why_stays_on_node(host, "migrate")
        if not has_other_hosts(self._picture, cell, host):
            return f"cell {cell} has no other host, and an instance moves only within its cell"
        return ""
