"""The dead letters of all brokers, for those who look at them. They are not consumed: each goes back to its queue at once."""

import asyncio
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import Struct, structs
from rich.markup import escape
from rich.text import Text
from starlette.requests import Request
from starlette.responses import Response

from bus.topology import Site
from kit.errors import UNREADABLE, Failure
from kit.settings import without_password
from moor.broker.deployments import BrokerDeployment
from moor.client import Client, ClientError, DeadLetter
from moor.dashboard.rendering import HtmlTable, PageRefused, PageRenderer, Reader, html_of, table_of
from moor.resources import BODY_SHOWN_MAX, DEAD_LETTER

# So many letters of each broker are read, the oldest ones.
LETTERS_MAX = 200
# All who look within this time see the same letters: while they are read, they are in no queue.
KEPT_S = 2.0
BROKER_S_MAX = 10.0


class LetterSeen(Struct, frozen=True):
    """A dead letter whose body is readable, without secrets, and cut; it had so many `bytes`."""

    broker: str
    letter: DeadLetter
    bytes: int
    is_cut: bool


class LettersOfBroker(Struct, frozen=True):
    """The oldest letters of one broker, of `count` in all. `trouble` says why they could not be read."""

    broker: str
    url: str
    letters: tuple[LetterSeen, ...] = ()
    count: int = 0
    trouble: str = ""


class LetterReader:
    """Reads the letters of these brokers; `deployments` says which there are now."""

    def __init__(self, deployments: Callable[[], Sequence[BrokerDeployment]]) -> None:
        self._deployments = deployments
        self._lock = asyncio.Lock()
        self._last: tuple[LettersOfBroker, ...] = ()
        self._until_s = 0.0

    async def read(self) -> tuple[LettersOfBroker, ...]:
        now_s = asyncio.get_running_loop().time
        async with self._lock:
            if now_s() >= self._until_s:
                brokers = [each for each in self._deployments() if each.sites != (Site.IRONIC,)]
                self._last = tuple(await asyncio.gather(*map(_read, brokers)))
                self._until_s = now_s() + KEPT_S
            return self._last

    async def replay(self, broker: str, handle: str) -> DeadLetter:
        """Send a letter back to its queue. Raises `NotFound`, or a failure of the broker."""
        deployment = next((each for each in self._deployments() if each.names[0] == broker), None)
        if deployment is None:
            raise PageRefused(f"There is no broker {broker!r}.")
        async with self._lock:
            # The letters have changed: the next reader must see that.
            self._until_s = 0.0
            (letter,) = await _client_of(deployment).replay_dead_letters(handle)
        return letter

    async def letter(self, broker: str, handle: str) -> LetterSeen | None:
        found = [each for of_broker in await self.read() for each in of_broker.letters]
        return next((each for each in found if (each.broker, each.letter.handle) == (broker, handle)), None)


def _client_of(deployment: BrokerDeployment) -> Client:
    """An operator's client on this broker. To read letters it needs not be opened."""
    return Client(deployment.url, project="", as_operator=True)


async def _read(deployment: BrokerDeployment) -> LettersOfBroker:
    name, url = deployment.names[0], without_password(deployment.url)
    moor = _client_of(deployment)
    try:
        async with asyncio.timeout(BROKER_S_MAX):
            count = await moor.count_dead_letters()
            letters = tuple([_seen(name, each) for each in await moor.list_dead_letters(limit=LETTERS_MAX)])
    except TimeoutError:
        return LettersOfBroker(name, url, trouble=f"it did not answer within {BROKER_S_MAX:.0f} s")
    except (ClientError, Failure) as problem:
        return LettersOfBroker(name, url, trouble=str(problem))
    return LettersOfBroker(name, url, letters, max(count, len(letters)))


def _seen(broker: str, letter: DeadLetter) -> LetterSeen:
    body = masked(letter.parcel.body)
    shown = structs.replace(letter.parcel, body=body[:BODY_SHOWN_MAX].encode(errors="replace"))
    return LetterSeen(
        broker=broker,
        letter=structs.replace(letter, parcel=shown),
        bytes=len(letter.parcel.body),
        is_cut=len(body) > BODY_SHOWN_MAX,
    )


class LetterPages(PageRenderer):
    def __init__(self, letters: LetterReader) -> None:
        self.reader = letters

    async def letters(self, request: Request, reader: Reader) -> Response:
        note = (
            "Messages that no worker could handle. They stay until somebody decides: `moor dead replay` sends them to their queue "
            "again, `moor dead delete` deletes them. Looking at them changes nothing."
        )
        parts = [(_heading(each), _table(each)) for each in await self.reader.read()]
        return self.thing(request, reader, "Dead letters", (), parts, note=note)

    async def letter(self, request: Request, reader: Reader) -> Response:
        broker, handle = request.path_params["broker"], request.path_params["handle"]
        found = await self.reader.letter(broker, handle)
        if found is None:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, no_letter(broker, handle))
        facts = [
            (label, fact)
            for label, fact in DEAD_LETTER.facts(found.letter)
            if label not in ("size", "message")
        ]
        whole = (
            f"This is the message's beginning: `moor dead show {handle} -o json` has all of it. "
            if found.is_cut
            else ""
        )
        order = (f"/orders/replay?{urlencode({'broker': broker, 'letter': handle})}", "Replay it")
        return self.thing(
            request,
            reader,
            f"Dead letter {handle}",
            [*facts, ("broker", escape(broker)), ("size", f"{found.bytes:,} bytes")],
            (),
            text=found.letter.parcel.body.decode(),
            orders=(order,) if reader.operates else (),
            links=(("/dead", "All dead letters"),),
            note=f"{whole}Values that may be secrets are hidden as ***.",
        )


def no_letter(broker: str, handle: str) -> str:
    return f"There is no dead letter {handle!r} of {broker!r} among the oldest {LETTERS_MAX}: it may have been replayed or deleted."


def _heading(found: LettersOfBroker) -> str:
    shown = len(found.letters)
    many = f": the oldest {shown:,} of {found.count:,}" if found.count > shown else ""
    return f"At {found.broker}, {found.url}{many}"


def _table(found: LettersOfBroker) -> HtmlTable:
    nothing: str | Text = "No dead letters."
    if found.trouble:
        why = f"They cannot be read: {found.trouble}. A user who may read the queue `dead` is needed: an operator."
        nothing = Text(why, "red")
    elif found.count:
        nothing = f"{found.count:,} dead letters are with another reader now: look again."
    return table_of(
        DEAD_LETTER.columns,
        [each.letter for each in found.letters],
        lambda letter: f"/dead/{found.broker}/{letter.handle}",
        html_of(nothing),
    )


# A message's bytes as a text for people, without the secrets in it. Pure.

HIDDEN = "***"
# The names of fields that are secret: the config drive of an instance and its user data often have passwords and keys of its owner. A
# trait, a class or a key of metadata that is only called after a secret (`trait:CUSTOM_SECRET_ZONE`, `secret_zone`) is shown.
_NAMES = (
    r"(?:[a-z\d]{1,40}[_-]){0,9}(?:[a-z\d]{1,40}(?=[A-Z]))?"
    "(?i:pass(?:word|phrase|wd)?|secret|tokens?|credentials?|private_?key|user_?data|config_?drive|injected_?(?:files|network))"
)
_SECRET_KEY = re.compile(_NAMES)
# In what is no JSON, such as a body that was cut: the value of such a key, up to its end or to that of the body.
_SECRET_TEXT = re.compile(rf'("{_NAMES}"\s{{0,9}}:\s{{0,9}})(?:"(?:[^"\\]|\\.)*+"?|[^,}}\s][^,}}\n]*+)')
# In a URL. Each part is bounded, so that no body takes long.
_URL_PASSWORD = re.compile(r"(://[^:/@\s]{0,200}):[^@\s]{0,500}@")
# A body that is no JSON is read up to here: nobody looks at more of it.
BROKEN_MAX = 8000


def masked(body: bytes) -> str:
    """The body indented, each value whose key names a secret hidden. A body has one message, or one in each line.

    Of a body that is no JSON this is the beginning.
    """
    try:
        return _in_words(msgspec.json.decode(body))
    except UNREADABLE:
        pass
    try:
        return "\n".join([_in_words(msgspec.json.decode(line)) for line in body.split(b"\n")])
    except UNREADABLE:
        text = body[:BROKEN_MAX].decode(errors="replace")
        return _without_password(_SECRET_TEXT.sub(rf'\1"{HIDDEN}"', text))


def _in_words(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(_without_secrets(value)), indent=2).decode()


def _without_secrets(value: Any) -> Any:
    match value:
        case dict():
            return {
                key: HIDDEN if each and _SECRET_KEY.fullmatch(key) else _without_secrets(each)
                for key, each in value.items()
            }
        case list():
            return [_without_secrets(each) for each in value]
        case str():
            return _without_password(value)
    return value


def _without_password(text: str) -> str:
    return _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text) if "://" in text else text
