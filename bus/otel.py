"""Sends traces by OTLP over HTTP, with OpenTelemetry (the extra `moorage[otel]`).

A span stands for one message in one worker: from when it was taken from its queue until it was acknowledged. An order of a client that
is in no trace begins one. Others outside of a trace, such as heartbeats, begin none.

Only a process whose settings name a receiver loads this.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from bus.message import Message, StrictMessage, type_of
from bus.queues import QueueKind
from bus.topology import kind_of
from kit import logs
from kit.health import About

# The path of traces below the address of a receiver.
PATH = "/v1/traces"
FLUSH_MS_MAX = 5_000
# Attributes of messages that spans have, by the name of the field.
_FIELDS = ("instance", "request_id", "consumer", "cell", "host", "attempt")


@contextmanager
def traces_sent(about: About, url: str, share: float) -> Iterator[None]:
    """A context in which this process sends this share of its traces to this address."""
    provider = _provider(about, url, share)
    logs.use_tracer(_Tracer(provider))
    try:
        yield
    finally:
        logs.use_tracer(None)
        provider.force_flush(FLUSH_MS_MAX)
        provider.shutdown()


def _provider(about: About, url: str, share: float) -> TracerProvider:
    facts = {"service.namespace": "moorage", "service.name": about.role, "service.version": about.version}
    resource = Resource.create({**facts, **({"moorage.cell": about.cell} if about.cell else {})})
    provider = TracerProvider(
        resource=resource, sampler=ParentBasedTraceIdRatio(share), shutdown_on_exit=False
    )
    address = url.rstrip("/")
    endpoint = address if address.endswith(PATH) else f"{address}{PATH}"
    # In a thread of its own. What does not fit is dropped: traces hold up no boot.
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    logging.getLogger("opentelemetry").setLevel(logging.WARNING)
    return provider


class _Tracer:
    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("moorage")
        self._texts = TraceContextTextMapPropagator()

    def begin(
        self, message: object, queue: str, parent: str, sent_at: datetime | None
    ) -> logs.OpenSpan | None:
        if not isinstance(message, Message) or not (parent or _begins_a_trace(message, queue)):
            return None
        attributes: dict[str, str] = {
            "messaging.system": "rabbitmq",
            "messaging.operation.type": "process",
            "messaging.destination.name": queue,
            "moorage.message.type": type_of(message),
        }
        for field in _FIELDS:
            if value := getattr(message, field, None):
                attributes[f"moorage.{field}"] = _text_of(value)
        if sent_at is not None:
            attributes["moorage.sent_at"] = sent_at.isoformat()
        span = self._tracer.start_span(
            f"{queue} {type_of(message)}",
            context=self._texts.extract({"traceparent": parent}) if parent else None,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        )
        return _OpenSpan(span, self._texts_of(span))

    def _texts_of(self, span: Span) -> str:
        carrier: dict[str, str] = {}
        self._texts.inject(carrier, set_span_in_context(span))
        return carrier.get("traceparent", "")


class _OpenSpan:
    def __init__(self, span: Span, context: str) -> None:
        self._span = span
        self.context = context

    def end(self, problem: str = "") -> None:
        if problem:
            self._span.set_status(Status(StatusCode.ERROR, problem))
        self._span.end()


def _begins_a_trace(message: Message, queue: str) -> bool:
    """Is it an order of a client? Questions, which clients ask again and again, begin none."""
    return isinstance(message, StrictMessage) and kind_of(queue) is not QueueKind.QUESTIONS


def _text_of(value: object) -> str:
    """An id as text; of the state of an instance, its id."""
    return str(getattr(value, "id", value))
