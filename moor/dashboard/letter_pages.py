"""The pages of dead letters: which there are, and one of them."""

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from moor.dashboard.letters import LETTERS_MAX, LetterReader
from moor.dashboard.rendering import PageRenderer, Reader


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
