"""What an operator may limit of the HTTP service."""

from msgspec import Struct

from bus.tuning import Section
from placement_worker.core.candidates.budget import DEFAULT_LIMITS, SearchLimits


class ApiSettings(Struct, frozen=True):
    # The largest reshape of a whole cloud's tree stays far below; who sends more is cut off while sending.
    body_bytes_max: int = 16 * 1024 * 1024
    # How many values a body may have: keys and their values, items of lists. To move a host and its thousand instances takes
    # ten thousand.
    body_values_max: int = 50_000
    # How long a body may take to come: who sends a byte a minute holds a connection, and no more.
    body_s_max: float = 60.0
    # The request's first line: nova's longest queries for candidates take some thousand bytes.
    target_bytes_max: int = 64 * 1024
    headers_bytes_max: int = 64 * 1024
    headers_max: int = 200
    query_keys_max: int = 1_000
    # What one search for candidates may cost, and how long its answer may be.
    search_steps_max: int = DEFAULT_LIMITS.steps_max
    search_bytes_max: int = DEFAULT_LIMITS.bytes_max
    answer_bytes_max: int = DEFAULT_LIMITS.answer_bytes_max
    # An idle connection is closed after so long. No longer than Apache keeps one: Nova's services fork after their first use
    # of a connection, and parent and children then read each other's answers from it.
    idle_s_max: float = 5.0
    # How long a request's head may take to come, from its first byte, or from the connection's beginning.
    head_s_max: float = 20.0
    # How long a client may leave an answer unread.
    answer_s_max: float = 60.0
    # Open connections in all, well below the usual 1,024 files of a process; and of one address, but for this machine's.
    connections_max: int = 800
    connections_per_address_max: int = 200
    # Requests that a client may send on one connection before it reads the first answer.
    pipelined_max: int = 16
    # The path under which a proxy hands requests on without taking it off: "/placement". Empty: the root.
    prefix: str = ""
    # Browsers' origins that may read answers: "https://cloud.example.com"; "*" is any.
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name.partition("_max")[1] and getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be more than 0")
        if self.prefix and (not self.prefix.startswith("/") or self.prefix.endswith("/")):
            raise ValueError(f"prefix is {self.prefix!r}: it begins with a slash and does not end with one")

    @property
    def search_limits(self) -> SearchLimits:
        return SearchLimits(self.search_steps_max, self.search_bytes_max, self.answer_bytes_max)


# These have flags, with variables of their own.
_WITH_FLAGS = (
    *("prefix", "cors_origins", "idle_s_max", "head_s_max", "body_s_max"),
    *("connections_max", "connections_per_address_max"),
)
SECTION = Section("placement_api", ApiSettings, omitted=_WITH_FLAGS)
