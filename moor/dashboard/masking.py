"""A message's bytes as a text for people, without the secrets in it. Pure."""

import re
from typing import Any

import msgspec

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
# Of what is no JSON, no more is read: nobody looks at more of it.
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
