"""Settings of the HTTP service that an operator may change."""

from typing import Annotated

from msgspec import Meta, Struct

from bus.configuration.sections import Bytes, Count, Seconds, Section, require
from placement_worker.core.candidates.budget import DEFAULT_LIMITS, SearchLimits


class ApiSettings(Struct, frozen=True):
    body_bytes_max: Annotated[
        Bytes,
        Meta(
            description="How large the body of a request may be; the largest reshape of a whole cloud's tree is far smaller. Larger lets one "
            "client use more memory; too small refuses large reshapes."
        ),
    ] = 16 * 1024 * 1024
    body_values_max: Annotated[
        Count,
        Meta(
            description="How many values a body may have: keys and their values, items of lists. To move a host with a thousand instances takes "
            "ten thousand. More lets one request cost more CPU; fewer refuses large changes."
        ),
    ] = 50_000
    body_s_max: Annotated[
        Seconds,
        Meta(
            description="How long a body may take to arrive. Longer serves slow clients; shorter frees connections of clients that stall."
        ),
    ] = 60.0
    target_bytes_max: Annotated[
        Bytes,
        Meta(
            description="How long the first line of a request may be; Nova's longest queries for candidates have some thousand bytes. Longer "
            "accepts longer queries; shorter protects the parser."
        ),
    ] = 64 * 1024
    headers_bytes_max: Annotated[
        Bytes,
        Meta(
            description="How large all headers of a request may be together. Larger accepts large tokens; smaller protects memory."
        ),
    ] = 64 * 1024
    headers_max: Annotated[
        Count,
        Meta(
            description="How many headers a request may have. More is rarely needed; fewer protects the parser."
        ),
    ] = 200
    query_keys_max: Annotated[
        Count,
        Meta(
            description="How many keys the query of a request may have. More accepts questions with more groups; fewer protects the parser."
        ),
    ] = 1_000
    search_steps_max: Annotated[
        Count,
        Meta(
            description="How many steps one search for candidates may take; a step is 0.1 to 0.5 microseconds. More answers harder questions; "
            "fewer protects other clients from them."
        ),
    ] = DEFAULT_LIMITS.steps_max
    search_bytes_max: Annotated[
        Bytes,
        Meta(
            description="How much memory the tables of one search may take. More answers harder questions; less protects the process from them."
        ),
    ] = DEFAULT_LIMITS.bytes_max
    answer_bytes_max: Annotated[
        Bytes,
        Meta(
            description="How large an answer to a search may be. Larger answers broader questions; smaller protects memory."
        ),
    ] = DEFAULT_LIMITS.answer_bytes_max
    idle_s_max: Annotated[
        Seconds,
        Meta(
            description="How long an idle connection is kept. Longer saves clients from connecting again. It should not exceed 5: Nova's "
            "services fork after their first use of a connection, and parent and children then read each other's answers from it."
        ),
    ] = 5.0
    head_s_max: Annotated[
        Seconds,
        Meta(
            description="How long the head of a request may take to arrive, from its first byte or from the start of the connection. Longer "
            "serves slow clients; shorter frees connections of clients that stall."
        ),
    ] = 20.0
    answer_s_max: Annotated[
        Seconds,
        Meta(
            description="How long a client may leave an answer unread. Longer serves slow clients; shorter frees memory and connections."
        ),
    ] = 60.0
    connections_max: Annotated[
        Count,
        Meta(
            description="How many connections may be open in all. More serves more clients, but must stay well below the process's limit of "
            "open files (usually 1,024)."
        ),
    ] = 800
    connections_per_address_max: Annotated[
        Count,
        Meta(
            description="How many connections one address may have open, except this machine. More serves clients behind one proxy; fewer keeps "
            "one client from taking all."
        ),
    ] = 200
    pipelined_max: Annotated[
        Count,
        Meta(
            description="How many requests a client may send on one connection before it reads the first answer. More helps clients that "
            "pipeline; fewer limits the memory that one client takes."
        ),
    ] = 16
    prefix: Annotated[
        str,
        Meta(
            description="The path before all paths, which a proxy forwards without removing it, as /placement. Empty: none."
        ),
    ] = ""
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="The origins whose web pages may read answers in a browser, as https://cloud.example.com. * allows any page."
        ),
    ] = ()

    def __post_init__(self) -> None:
        require(
            not self.prefix or (self.prefix.startswith("/") and not self.prefix.endswith("/")),
            f"prefix is {self.prefix!r}, must begin with a slash and not end with one",
        )

    @property
    def search_limits(self) -> SearchLimits:
        return SearchLimits(self.search_steps_max, self.search_bytes_max, self.answer_bytes_max)


# The omitted settings have flags, and variables of their own.
PLACEMENT_API = Section(
    "placement_api", ApiSettings, "placement's HTTP API", omitted=("prefix", "cors_origins")
)
