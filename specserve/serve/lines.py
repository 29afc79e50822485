"""Requests as JSON lines, for `generate` and `bench`; also of a log and of OpenAI's batch API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from specserve.plan.launchplan import Json

Record = dict[str, Any]
_BODIES = ("body", "request", "request_body")
"""Where a batch or a log keeps what the client sent."""
_WITHOUT_EFFECT = frozenset(
    ("model", "user", "stream", "stream_options", "metadata", "store", "service_tier")
)
"""What clients send beside the prompt that changes no answer here: the model is the profile's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that is not blank. `index` counts these from 0, `line` all lines from 1."""

    index: int
    line: int
    id: Json = None
    request: Mapping[str, Json] | None = None
    """`prompt` (text or token ids) or `messages`, and `params` by vLLM's names."""
    error: str | None = None
    id_key: str = "id"
    """`custom_id` in a line of OpenAI's batch API."""
    is_logged: bool = False
    """Whether it is a body as a client sends it, alone or within a line of a batch or a log."""

    def record(self, answer: Mapping[str, Any]) -> Record:
        """The output line: the answer, or its `error` with the number of the line."""
        content = {"error": f"line {self.line}: {answer['error']}"} if "error" in answer else answer
        return {self.id_key: self.id, "index": self.index, **content}


def entries(data: bytes) -> Iterator[Entry]:
    """Read JSON lines; one that is no request becomes an Entry with an error."""
    index = 0
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield _entry(raw, index=index, line=number)
            index += 1


def _entry(raw: bytes, *, index: int, line: int) -> Entry:
    identity, id_key, is_logged, request, error = None, "id", False, None, None
    try:
        body = _parsed(raw)
        id_key = "custom_id" if "custom_id" in body else "id"
        identity = body.pop(id_key, None)
        wrapper = next((key for key in _BODIES if key in body), None)
        is_logged = wrapper is not None or "model" in body
        if wrapper is not None:
            body = body[wrapper]
            body = _parsed(body.encode(errors="surrogatepass")) if isinstance(body, str) else body
        if isinstance(identity, bool) or not isinstance(identity, str | int | float | None):
            raise ValueError(f"`{id_key}` must be a string or a number")
        request = _request(body)
    except (ValueError, RecursionError) as caught:
        error = "nested too deeply" if isinstance(caught, RecursionError) else str(caught)
    return Entry(index, line, identity, request, error, id_key, is_logged)


def _parsed(raw: bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises ValueError with the reason in words."""
    try:
        text = raw.decode("utf-8")
        body = json.loads(text, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise ValueError(f"invalid JSON at column {error.colno}: {reason}") from None
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is not a JSON number")


def _request(body: Any) -> dict[str, Json]:
    """`prompt` or `messages`, and `params`; clients write null for what they do not set."""
    if not isinstance(body, dict):
        raise ValueError("the body of the request is not a JSON object")
    given = {name: body.pop(name) for name in ("prompt", "messages") if name in body}
    if len(given) != 1:
        both = ", not both" if given else ""
        raise ValueError(f"one of `prompt` and `messages` is needed{both}")
    ((name, value),) = given.items()
    items: list[Any] = value if isinstance(value, list) else []
    if name == "messages":
        if not items or not all(isinstance(each, dict) and "role" in each for each in items):
            raise ValueError("`messages` must be a list of objects with `role` and `content`")
    elif not (isinstance(value, str) or (items and all(type(token) is int for token in items))):
        raise ValueError("`prompt` must be text, or a list of token ids")
    params = {k: v for k, v in body.items() if k not in _WITHOUT_EFFECT and v is not None}
    if "max_completion_tokens" in params:
        params["max_tokens"] = params.pop("max_completion_tokens")
    if isinstance(params.get("logprobs"), bool):  # a chat's: whether, and how many
        most = params.pop("top_logprobs", 0)
        if params.pop("logprobs"):
            params["logprobs"] = most
    request = {**given, "params": params}
    try:
        json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("unpaired surrogate: not valid Unicode text") from None
    return request
