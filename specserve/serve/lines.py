"""Requests as JSON lines: those of `generate`, of a file for `bench`, of a log, of OpenAI's batch API."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from specserve.errors import quoted
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
    """`prompt` (text or token ids) or `messages`, and `params`: sampling parameters by vLLM's names."""
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
    """Read JSON lines; a line that is no request becomes an Entry with an error, and stops nothing."""
    index = 0
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield _entry(raw, index=index, line=number)
            index += 1


def _entry(raw: bytes, *, index: int, line: int) -> Entry:
    identity, id_key, is_logged = None, "id", False
    try:
        body = _parsed(raw)
        id_key = "custom_id" if "custom_id" in body else "id"
        identity, wrapper = body.pop(id_key, None), next((key for key in _BODIES if key in body), None)
        is_logged = wrapper is not None or "model" in body
        if wrapper is not None:
            body = body[wrapper]
            body = _parsed(body.encode(errors="surrogatepass")) if isinstance(body, str) else body
        request, error = _request(body, identity, id_key), None
    except (ValueError, RecursionError) as caught:
        request, error = None, "nested too deeply" if isinstance(caught, RecursionError) else str(caught)
    return Entry(index, line, identity, request, error, id_key, is_logged)


def _parsed(raw: bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises ValueError with the reason in words."""
    try:
        text = raw.decode("utf-8")
        body = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise ValueError(f"invalid JSON at column {error.colno}: {reason}") from None
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body


def _without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    body = dict(pairs)
    if len(body) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"duplicate key {quoted(name)}")
    return body


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is not a JSON number")


def _request(body: Any, identity: Json, id_key: str) -> dict[str, Json]:
    if not isinstance(body, dict):
        raise ValueError("the body of the request is not a JSON object")
    if not (identity is None or isinstance(identity, str | int | float)) or isinstance(identity, bool):
        raise ValueError(f"`{id_key}` must be a string or a number")
    given = {name: body.pop(name) for name in ("prompt", "messages") if name in body}
    if len(given) != 1:
        raise ValueError("one of `prompt` and `messages` is needed" + (", not both" if given else ""))
    if "messages" in given:
        _check_messages(given["messages"])
    elif not (isinstance(given["prompt"], str) or _is_token_ids(given["prompt"])):
        raise ValueError("`prompt` must be text, or a list of token ids")
    request = {**given, "params": _params(body)}
    try:
        json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("unpaired surrogate: not valid Unicode text") from None
    return request


def _params(body: dict[str, Any]) -> dict[str, Json]:
    """Sampling parameters by vLLM's names; clients write null for what they do not set."""
    params = {key: value for key, value in body.items() if key not in _WITHOUT_EFFECT and value is not None}
    if "max_completion_tokens" in params:
        params["max_tokens"] = params.pop("max_completion_tokens")
    if isinstance(params.get("logprobs"), bool):  # a chat's: whether, and how many in `top_logprobs`
        most = params.pop("top_logprobs", 0)
        if params.pop("logprobs"):
            params["logprobs"] = most
    return params


def _is_token_ids(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _check_messages(value: Any) -> None:
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise ValueError("`messages` must be a list of objects with `role` and `content`")
    if not all(isinstance(message.get("role"), str) for message in value):
        raise ValueError("every message needs a `role`")
