"""Questions of keepers to persons. A keeper asks once about a decision that it must not make alone, and says what each answer would do."""

from typing import Annotated, Literal, NewType
from uuid import UUID

from msgspec import Meta

from bus.message import AnswerMessage, Kind, Message, Route, StrictMessage
from bus.messages.keeping import CampaignId
from engine.inventories import Label, Moment, ProviderId, UserName, Value

QuestionId = NewType("QuestionId", UUID)
QuestionLife = Literal["open", "answered", "void"]


class PossibleAnswer(Value, frozen=True):
    """An answer that may be given, and what it would do."""

    answer: Label
    does: str


class Question(Value, frozen=True):
    """A question to a person: about a host of a campaign, about all of its hosts that are held, or, without a campaign, about a bare-metal
    node that has lost its power. It is `open` until it is answered, or until it does not matter any more (`void`): then `reason` says
    why. `text` says what happened. `by` is who answered.
    """

    id: QuestionId
    campaign: CampaignId | None
    host_id: ProviderId | None
    cell: Label
    host: Label
    text: str
    choices: tuple[PossibleAnswer, ...]
    asked_at: Moment
    life: QuestionLife = "open"
    answer: Label = ""
    by: Label = ""
    reason: str = ""
    ended_at: Moment | None = None


class AnswerQuestion(StrictMessage, frozen=True, tag="question.answer"):
    """Answer a question. If it is not open any more, or has no such answer, the order is refused and nothing is done; the same answer
    again is accepted.
    """

    ROUTE = Route(Kind.ORDER, "keeper.requests", answer="question.found", by=("operator",))

    question: Annotated[QuestionId, Meta(description="the question's id")]
    answer: Annotated[Label, Meta(description="one of the question's answers")]
    for_user: UserName = ""


class AskQuestions(StrictMessage, frozen=True, tag="question.query"):
    """Asks for a page of questions, the newest first, after the question `after`: the open ones, or with `ended` all of them; or for the
    one with this `id`.
    """

    ROUTE = Route(Kind.QUESTION, "keeper.questions", answer="question.found", by=("admin",))

    id: QuestionId | None = None
    ended: bool = False
    after: QuestionId | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class QuestionsFound(AnswerMessage, frozen=True, tag="question.found"):
    """A page of questions. `next` is where the next page begins, null on the last page."""

    questions: tuple[Question, ...]
    next: QuestionId | None = None


class QuestionChanged(Message, frozen=True, tag="question.changed"):
    """A question was asked, was answered, or does not matter any more. It may be said more than once."""

    ROUTE = Route(Kind.EVENT, by=("keeper",), public=True)

    question: Question
