"""One answer in words and in JSON. Does not know how it was fetched."""

from __future__ import annotations

from specserve.report.acceptance import acceptance_json, acceptance_line
from specserve.serve.client import Answer, Speculation


def figures(answer: Answer) -> list[str]:
    """The lines under an answer: its speed, and what speculation did for it."""
    parts = []
    if answer.ttft_s is not None:
        parts.append(f"TTFT {1000 * answer.ttft_s:.0f} ms")
    if answer.completion_tokens is not None:
        parts.append(f"{answer.completion_tokens} token{'' if answer.completion_tokens == 1 else 's'}")
    if answer.tokens_per_s is not None:
        parts.append(f"{answer.tokens_per_s:.1f} tokens/s")
    if answer.finish_reason == "length":
        parts.append("stopped at the token limit")
    return [", ".join(parts), speculation_line(answer.speculation)]


def speculation_line(speculation: Speculation) -> str:
    """The acceptance, and how much of it is this request's own."""
    if speculation.is_on is None:
        return "acceptance unknown: the server shows no metrics"
    if not speculation.is_on:
        return "no speculation"
    if speculation.basis is None:
        return "acceptance unknown: the server's metrics went away"
    line = acceptance_line(speculation.acceptance)
    if speculation.other_requests:
        others = speculation.other_requests
        line += f" ({others} other request{'s' if others > 1 else ''} ran: acceptance is the server's)"
    return line


def answer_json(answer: Answer, *, url: str) -> dict[str, object]:
    """The same for scripts: times in ms, `speculation` null where the server does not speculate."""
    speculation = answer.speculation
    return {
        "version": 1,
        "url": url,
        "model": answer.model,
        "mode": answer.mode,
        "text": answer.text,
        "reasoning": answer.reasoning or None,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "ttft_ms": None if answer.ttft_s is None else round(1000 * answer.ttft_s, 3),
        "tokens_per_s": None if answer.tokens_per_s is None else round(answer.tokens_per_s, 3),
        "speculates": speculation.is_on,
        "speculation": acceptance_json(speculation.acceptance),
        "speculation_basis": speculation.basis,
        "other_requests": speculation.other_requests,
    }
