"""Evaluates Erlang expressions inside RabbitMQ. That is a hundred times cheaper than rabbitmqctl, which starts a whole
Erlang machine for each call (0.7 s of CPU).

`rabbitmqctl eval` sends only the first expression. It starts an Erlang process on the node that listens on loopback, and
all later expressions go there. That process survives `stop_app`. After a restart of the node, rabbitmqctl starts it again.
"""

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

LOOPBACK = "127.0.0.1"
# One expression per connection. Request: the secret and the expression. Answer: `+` and the value, or `-` and the error.
_LISTEN = """
Asker = self(),
Evaluated = fun(Text) ->
    try
        {{ok, Tokens, _}} = erl_scan:string(unicode:characters_to_list(Text)),
        {{ok, Expressions}} = erl_parse:parse_exprs(Tokens),
        {{value, Value, _}} = erl_eval:exprs(Expressions, []),
        io_lib:format("+~tp", [Value])
    catch Class:Reason -> io_lib:format("-~tp", [{{Class, Reason}}])
    end
end,
spawn(fun() ->
    group_leader(whereis(user), self()),
    {{ok, Listening}} = gen_tcp:listen(0, [binary, {{packet, 4}}, {{active, false}}, {{ip, {{127, 0, 0, 1}}}}]),
    {{ok, Port}} = inet:port(Listening),
    Asker ! {{listening, Port}},
    (fun Accept() ->
        {{ok, Socket}} = gen_tcp:accept(Listening),
        case gen_tcp:recv(Socket, 0) of
            {{ok, <<"{secret}", Text/binary>>}} ->
                gen_tcp:send(Socket, unicode:characters_to_binary(Evaluated(Text)));
            _ -> ok
        end,
        gen_tcp:close(Socket),
        Accept()
    end)()
end),
receive {{listening, Port}} -> Port end.
"""


class RefusedExpressionError(RuntimeError):
    """Erlang could not evaluate it; the message holds its reason."""


@dataclass
class InsideBroker:
    """`ctl_eval` runs `rabbitmqctl eval` with an expression and returns its output."""

    ctl_eval: Callable[[str], str]
    limit_s: float
    _secret: str = field(default_factory=lambda: secrets.token_hex(16))
    _port: int | None = None

    def evaluate(self, expression: str) -> str:
        """The value of the expression, as Erlang writes it."""
        if self._port is not None:
            with suppress(ConnectionError):
                return self._ask(self._port, expression)
        self._port = int(self.ctl_eval(_LISTEN.format(secret=self._secret)))
        return self._ask(self._port, expression)

    def _ask(self, port: int, expression: str) -> str:
        with socket.create_connection((LOOPBACK, port), timeout=self.limit_s) as connection:
            text = f"{self._secret}{expression}".encode()
            connection.sendall(len(text).to_bytes(4, "big") + text)
            said = self._read(connection, int.from_bytes(self._read(connection, 4), "big")).decode()
        if not said.startswith("+"):
            raise RefusedExpressionError(f"RabbitMQ cannot evaluate {expression[:200]}: {said[1:]}")
        return said[1:]

    def _read(self, connection: socket.socket, count: int) -> bytes:
        read = b""
        while len(read) < count:
            if not (more := connection.recv(count - len(read))):
                raise ConnectionResetError(
                    f"the broker closed the connection after {len(read)} of {count} bytes"
                )
            read += more
        return read
