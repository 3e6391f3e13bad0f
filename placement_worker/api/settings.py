"""Settings of the HTTP service that an operator may change."""

from typing import Annotated

from msgspec import Meta, Struct

from engine.candidates.budget import DEFAULT_LIMITS, SearchLimits
from kit.settings import Bytes, Count, Section, require


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
