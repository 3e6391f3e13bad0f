"""Questions about hosts for which nothing is claimed or written: plans, the verdict on every host, capabilities.

Each is answered from the picture, at the cost of some passes over all hosts.
"""

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildInstance, BuildRejected
from bus.messages.planning import AskCapabilities, AskPlan, AskReasons
from bus.workers.handling import Handlers, answering
from scheduler_worker.core.capabilities import capabilities, hosts_having
from scheduler_worker.core.choosing.planning import QUALIFY, plan_flavors, reasons, with_quota
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import Alternative, with_specs
from scheduler_worker.questions.quotas import Ask, quota_of
from scheduler_worker.requests.answering import rejection
from scheduler_worker.requests.named_by_requests import group_of
from scheduler_worker.requests.request_reader import RequestReader
from scheduler_worker.requests.stored_names import with_named
from scheduler_worker.store import SchedulerStore


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
        return with_quota(plan_flavors(self._picture, flavors, self._plugins), flavors, quota)

    async def _reasons(self, question: AskReasons) -> Message:
        known = [*dict.fromkeys(one.name for one in self._plugins.filters), QUALIFY]
        if question.step and question.step not in known:
            reason = f"there is no such step: known are {', '.join(known)}"
            return rejection("step", question.step, reason, question.request.request_id)
        flavors = await self._flavors_of(question.request)
        if isinstance(flavors, BuildRejected):
            return flavors
        return reasons(
            self._picture,
            flavors,
            self._plugins,
            step=question.step,
            after=question.after,
            limit=question.limit,
        )

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
        group = await group_of(self._store, request, request.group)
        if isinstance(group, str):
            return rejection("request.group", request.group.id, group, request.request_id)
        return with_specs(flavors, lambda spec: structs.replace(spec, server_group=group))
