"""Errors of the HTTP interface, in the shape that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Mapping

INVALID = "invalid_request_error"
AUTHENTICATION = "authentication_error"
OVERLOADED = "rate_limit_error"
SERVER = "server_error"


class ApiError(Exception):
    """An answer other than 200; `param` is the field that caused it, if one did."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        """Return the JSON object of the answer."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid(param: str, value: object, rule: str, example: object = None) -> ApiError:
    """Return a 400 with the value, the rule and, where there is one, a legal example."""
    shown = repr(value)
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    hint = "" if example is None else f", for example {example!r}"
    return ApiError(400, f"{param} {shown} must be {rule}{hint}", param=param)


_LONGEST = 80
"""Characters of a value that an error repeats."""
