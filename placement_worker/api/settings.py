"""Settings of the HTTP service that an operator may change."""

from msgspec import Struct

from bus.configuration.settings import require_positive
from bus.configuration.tuning import Section
from placement_worker.core.candidates.budget import DEFAULT_LIMITS, SearchLimits


class ApiSettings(Struct, frozen=True):
    # The largest reshape of a whole cloud's tree is far smaller. A larger body is cut off while the client sends it.
    body_bytes_max: int = 16 * 1024 * 1024
    # How many values a body may have: keys and their values, items of lists. To move a host and its thousand instances takes
    # ten thousand.
    body_values_max: int = 50_000
    # How long a body may take to arrive, so that a client that sends a byte a minute does not hold a connection for ever.
    body_s_max: float = 60.0
    # The request's first line: Nova's longest queries for candidates have some thousand bytes.
    target_bytes_max: int = 64 * 1024
    headers_bytes_max: int = 64 * 1024
    headers_max: int = 200
    query_keys_max: int = 1_000
    # Limits of one search for candidates, and of its answer.
    search_steps_max: int = DEFAULT_LIMITS.steps_max
    search_bytes_max: int = DEFAULT_LIMITS.bytes_max
    answer_bytes_max: int = DEFAULT_LIMITS.answer_bytes_max
    # How long an idle connection is kept. No longer than Apache keeps one: Nova's services fork after their first use of a
    # connection, and parent and children then read each other's answers from it.
    idle_s_max: float = 5.0
    # How long a request's head may take to arrive, from its first byte, or from the start of the connection.
    head_s_max: float = 20.0
    # How long a client may leave an answer unread.
    answer_s_max: float = 60.0
    # Open connections in all (well below a process's usual limit of 1,024 files), and from one address except this machine.
    connections_max: int = 800
    connections_per_address_max: int = 200
    # Requests that a client may send on one connection before it reads the first answer.
    pipelined_max: int = 16
    # The path that a proxy forwards without removing it: "/placement". Empty: the root.
    prefix: str = ""
    # Origins whose web pages may read answers in a browser: "https://cloud.example.com"; "*" is any.
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(self, [name for name in self.__struct_fields__ if name.partition("_max")[1]])
        if self.prefix and (not self.prefix.startswith("/") or self.prefix.endswith("/")):
            raise ValueError(f"prefix is {self.prefix!r}, must begin with a slash and not end with one")

    @property
    def search_limits(self) -> SearchLimits:
        return SearchLimits(self.search_steps_max, self.search_bytes_max, self.answer_bytes_max)


# The omitted settings have flags, and variables of their own.
SECTION = Section("placement_api", ApiSettings, omitted=("prefix", "cors_origins"))
