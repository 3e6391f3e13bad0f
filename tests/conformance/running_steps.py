"""Runs one file of the suite against one server, and reports which steps failed, and how."""

import http.client
import io
import os
import unittest
from collections.abc import Iterable
from contextlib import closing
from types import TracebackType
from typing import Any
from unittest.mock import patch
from urllib.parse import quote, urlsplit

from gabbi import suitemaker
from gabbi.handlers import RESPONSE_HANDLERS
from gabbi.utils import load_yaml

from tests.conformance.fixture_recipes import PlacementCalls, fixtures_by
from tests.conformance.suite_files import SuiteFile

_Raised = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


def failures_of(file: SuiteFile, url: str) -> dict[str, str]:
    """Each step that failed, with the reason; the server is emptied before."""
    with closing(PlacementCalls(url)) as calls, closing(_Forwarding(url)) as forwarding:
        calls.forget_everything()
        with file.path.open() as text:
            written = load_yaml(text)
        suite = suitemaker.test_suite_from_dict(
            unittest.defaultTestLoader,
            file.name,
            written,
            str(file.path.parent),
            urlsplit(url).hostname,
            urlsplit(url).port,
            fixtures_by(calls),
            lambda: forwarding,
            handlers=[handler() for handler in RESPONSE_HANDLERS],
            test_loader_name=__name__,
        )
        result = _Steps()
        # Fixtures pass values to the steps in environment variables.
        with patch.dict(os.environ):
            suite.run(result)
    assert result.passed + len(result.failed) == file.steps, f"{file.name} has {file.steps} steps: {result}"
    return result.failed


class _Steps(unittest.TestResult):
    """Results by the names of the steps. A skipped step counts as failed: upstream skips none."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0
        self.failed: dict[str, str] = {}

    def addSuccess(self, _: unittest.TestCase) -> None:  # noqa: N802  (unittest's name)
        self.passed += 1

    def addExpectedFailure(self, test: unittest.TestCase, _: _Raised) -> None:  # noqa: N802
        # It fails upstream as well, and the file says so.
        self.addSuccess(test)

    def addError(self, test: unittest.TestCase, err: _Raised) -> None:  # noqa: N802
        self._fail(test, f"{type(err[1]).__name__}: {err[1]}")

    addFailure = addError  # noqa: N815

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._fail(test, f"skipped: {reason}")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._fail(test, "passed, and upstream expects it to fail")

    def _fail(self, test: Any, why: str) -> None:
        self.failed.setdefault(str(test.test_data["name"]), " ".join(why.split()))


class _Forwarding:
    """Sends gabbi's requests over one connection to the server, with exactly its headers.

    gabbi's own client refuses to send invalid HTTP, which one of the steps needs, and creates a TLS context for each
    step. gabbi can call an application in place of a server: this one forwards its requests.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname, url
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        target = quote(environ["PATH_INFO"], safe="/:@!$&'()*+,;=~") + (
            f"?{environ['QUERY_STRING']}" if environ["QUERY_STRING"] else ""
        )
        self._connection.putrequest(
            environ["REQUEST_METHOD"], target, skip_host=True, skip_accept_encoding=True
        )
        for key, value in environ.items():
            if key in ("CONTENT_TYPE", "CONTENT_LENGTH") or key.startswith("HTTP_"):
                self._connection.putheader(key.removeprefix("HTTP_").replace("_", "-").lower(), value)
        self._connection.endheaders(environ["wsgi.input"].read() or None)
        answer = self._connection.getresponse()
        body = answer.read()
        start_response(f"{answer.status} {answer.reason}", answer.getheaders())
        return io.BytesIO(body)

    def close(self) -> None:
        self._connection.close()
