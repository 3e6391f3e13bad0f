"""The dead letters of all brokers, for those who look at them. They are not consumed: each goes back to its queue at once."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from bus.topology import Site
from kit.errors import Failure
from kit.settings import without_password
from moor.broker.deployments import BrokerDeployment
from moor.broker.messages_command import document_of
from moor.client import Client, ClientError, DeadLetter
from moor.dashboard.rendering import PageRefused, PageRenderer, Reader

# So many letters of each broker are read, the oldest ones.
LETTERS_MAX = 200
BODY_SHOWN_MAX = 4000
# All who look within this time see the same letters: while they are read, they are in no queue.
KEPT_S = 2.0
BROKER_S_MAX = 10.0


class LettersOfBroker(Struct, frozen=True):
    """The oldest letters of one broker, of `count` in all. `trouble` says why they could not be read."""

    broker: str
    url: str
    letters: tuple[Mapping[str, Any], ...] = ()
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
            (letter,) = await _client_of(deployment).replay_dead_letters(handle, limit=LETTERS_MAX)
        return letter

    async def letter(self, broker: str, handle: str) -> Mapping[str, Any] | None:
        found = [each for of_broker in await self.read() for each in of_broker.letters]
        return next((each for each in found if (each["broker"], each["handle"]) == (broker, handle)), None)


def _client_of(deployment: BrokerDeployment) -> Client:
    """An operator's client on this broker. To read letters it needs not be opened."""
    return Client(deployment.url, project="", as_operator=True)


async def _read(deployment: BrokerDeployment) -> LettersOfBroker:
    name, url = deployment.names[0], without_password(deployment.url)
    moor = _client_of(deployment)
    try:
        async with asyncio.timeout(BROKER_S_MAX):
            count = await moor.count_dead_letters()
            letters = tuple(
                [_shown(name, letter) for letter in await moor.list_dead_letters(limit=LETTERS_MAX)]
            )
    except TimeoutError:
        return LettersOfBroker(name, url, trouble=f"it did not answer within {BROKER_S_MAX:.0f} s")
    except (ClientError, Failure) as problem:
        return LettersOfBroker(name, url, trouble=str(problem))
    return LettersOfBroker(name, url, letters, max(count, len(letters)))


def _shown(broker: str, letter: DeadLetter) -> Mapping[str, Any]:
    """The document of a dead letter. `body` is readable, without secrets and not longer than BODY_SHOWN_MAX; `is_cut`: it had more."""
    body = masked(letter.parcel.body)
    is_cut = len(body) > BODY_SHOWN_MAX
    return {**document_of(letter), "broker": broker, "body": body[:BODY_SHOWN_MAX], "is_cut": is_cut}


class LetterPages(PageRenderer):
    def __init__(self, letters: LetterReader) -> None:
        self.reader = letters

    async def letters(self, request: Request, reader: Reader) -> Response:
        found = await self.reader.read()
        return self._page(request, reader, "letters.html", brokers=found, most=LETTERS_MAX)

    async def letter(self, request: Request, reader: Reader) -> Response:
        broker, handle = request.path_params["broker"], request.path_params["handle"]
        found = await self.reader.letter(broker, handle)
        if found is None:
            why = f"There is no dead letter {handle} of {broker} among the oldest {LETTERS_MAX}: it may have been replayed or dropped."
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, why)
        return self._page(request, reader, "letter.html", letter=found)


# A message's bytes as a text for people, without the secrets in it. Pure.

HIDDEN = "***"
# The config drive of an instance and its user data often have passwords and keys of its owner.
_NAMES = '(?:pass(?=w|phrase|"|$)|secret|token|credential|private_?key|user_?data|config_?drive|injected)'
_SECRET_KEY = re.compile(_NAMES, re.IGNORECASE)
# In what is no JSON, such as a body that was cut: the value of such a key, up to its end or to that of the body.
_SECRET_TEXT = re.compile(
    rf'("[^"\n]{{0,100}}?{_NAMES}[^"\n]{{0,100}}"\s{{0,9}}:\s{{0,9}})(?:"(?:[^"\\]|\\.)*+"?|[^,}}\s][^,}}\n]*+)',
    re.IGNORECASE,
)
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
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return "\n".join([_in_words(msgspec.json.decode(line)) for line in body.split(b"\n")])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        text = body[:BROKEN_MAX].decode(errors="replace")
        return _without_password(_SECRET_TEXT.sub(rf'\1"{HIDDEN}"', text))


def _in_words(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(_without_secrets(value)), indent=2).decode()


def _without_secrets(value: Any) -> Any:
    match value:
        case dict():
            return {
                key: HIDDEN if each and _SECRET_KEY.search(key) else _without_secrets(each)
                for key, each in value.items()
            }
        case list():
            return [_without_secrets(each) for each in value]
        case str():
            return _without_password(value)
    return value


def _without_password(text: str) -> str:
    return _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text) if "://" in text else text
