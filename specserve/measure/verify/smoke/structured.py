"""Structured output: a JSON schema, a call of a tool. Draft tokens must follow the grammar too."""

from __future__ import annotations

from specserve.measure.verify.prompts import Prompt
from specserve.measure.verify.result import Smoke
from specserve.measure.verify.session import Session
from specserve.measure.verify.smoke.requests import (
    GREEDY,
    MAX_TOKENS,
    SCHEMA,
    not_ok,
    schema_result,
    skipped,
)

_WEATHER = Prompt(
    "smoke",
    """Write one more line of the same kind.
{"days": 2, "city": "Lima"}
{"days": 5, "city": "Oslo"}
{"days": 7, "city": "Lima"}
{"days": 3, "city": "Oslo"}
""",
)
"""Examples, so that a small model too comes to an end: blanks without end are legal JSON."""
_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city", "parameters": SCHEMA},
}


def json_schema(session: Session) -> Smoke:
    """`response_format` with a JSON schema."""
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    raw = session.ask(_WEATHER, {**GREEDY, "max_tokens": MAX_TOKENS, "response_format": form})
    choice = raw["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"].get("content")
    return schema_result("JSON schema", str(text or ""), choice.get("finish_reason"))


def tool_call(session: Session) -> Smoke:
    """A named tool: its arguments must follow the schema of its parameters."""
    name = "tool call"
    if session.mode != "chat":
        return skipped(name, "the model has no chat template")
    choose = {"type": "function", "function": {"name": "get_weather"}}
    raw = session.ask(_WEATHER, {**GREEDY, "max_tokens": MAX_TOKENS, "tools": [_TOOL], "tool_choice": choose})
    choice = raw["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    if not calls:
        return not_ok(name, "the answer holds no call")
    if calls[0]["function"]["name"] != "get_weather":
        return not_ok(name, "the answer calls another tool")
    return schema_result(name, str(calls[0]["function"]["arguments"]), choice.get("finish_reason"))
