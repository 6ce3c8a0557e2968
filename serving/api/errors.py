"""Failures of the API as one sentence of JSON, never a trace."""

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from serving.store.protocol import StoreDown


class ApiError(Exception):
    """A refusal with its HTTP status and one sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def answer(status: int, body: Any) -> Response:
    """A JSON response."""
    return Response(orjson.dumps(body), status, media_type="application/json")


def failure(status: int, sentence: str) -> Response:
    """The `ErrorResponse` of one sentence."""
    return answer(status, {"error": sentence})


def install(app: FastAPI) -> None:
    """Makes every failure of `app` an `ErrorResponse`."""
    app.add_exception_handler(ApiError, lambda _, error: failure(error.status, error.sentence))  # type: ignore[attr-defined]
    app.add_exception_handler(StoreDown, lambda _, error: failure(503, str(error)))
    app.add_exception_handler(RequestValidationError, lambda _, error: failure(422, invalid(error.errors())))  # type: ignore[attr-defined]
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def invalid(errors: Sequence[Any]) -> str:
    """One sentence about the first thing wrong with a request."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"the request's body is not JSON: {_said(first['ctx']['error'])} at character {first['loc'][-1]}"
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where or 'the request'}: {_said(first['msg'])}{more}"


def _said(message: str) -> str:
    """A library's message as the end of a sentence."""
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return failure(404, f"there is nothing at {request.url.path}")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        offered = f"; {allowed} is" if allowed else ""
        response = failure(405, f"{request.method} is not there for {request.url.path}{offered}")
        response.headers.update(error.headers or {})
        return response
    return failure(error.status_code, f"{request.method} {request.url.path}: {_said(str(error.detail))}")


def _unexpected(request: Request, error: Exception) -> Response:
    traceback.print_exception(error, file=sys.stderr)
    return failure(500, f"{request.method} {request.url.path} failed inside the server; its log says why")
