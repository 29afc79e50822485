"""Texts that servers write, token by token, and how two of them differ."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.metrics import Acceptance, total_acceptance
from specserve.serve.client import metrics

if TYPE_CHECKING:
    from tests.engine.server import Server

PROMPT_FILE = Path(__file__).parents[2] / "demo" / "prompts.jsonl"
NEAR_TIE = 0.0625
"""One step of bf16 between 8 and 16, where the best logits lie: less is not told apart."""


@dataclass(frozen=True)
class Text:
    """One answer. `top[i]` holds the most likely tokens at position i and their log-probabilities."""

    prompt: str
    text: str
    ids: tuple[int, ...]
    top: tuple[Mapping[int, float], ...] = ()


def demo_prompts(count: int) -> list[str]:
    """Prompts of the demo's file, taken evenly: half function heads, half from inside files."""
    lines = PROMPT_FILE.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines[:: len(lines) // count]][:count]


def post(up: Server, **body: Any) -> dict[str, Any]:
    """One completion, which must succeed."""
    connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=120)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps({"model": "tiny", **body}), headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert response.status == 200, text
    answer: dict[str, Any] = json.loads(text)
    return answer


def write(
    up: Server, prompts: Sequence[str], *, concurrency: int, top: int | None = None, **sampling: Any
) -> list[Text]:
    """What the server writes after each prompt; greedy unless `sampling` says otherwise."""
    options = {"temperature": 0, "max_tokens": 64, "logprobs": top, **sampling}

    def one(prompt: str) -> Text:
        answer = post(up, prompt=prompt, return_token_ids=True, return_tokens_as_token_ids=True, **options)
        choice = answer["choices"][0]
        return Text(
            prompt=prompt,
            text=choice["text"],
            ids=tuple(choice["token_ids"]),
            top=tuple(_by_id(step) for step in (choice["logprobs"] or {}).get("top_logprobs", ())),
        )

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, prompts))


def _by_id(step: Mapping[str, float]) -> dict[int, float]:
    return {int(name.removeprefix("token_id:")): logprob for name, logprob in step.items()}


def near_ties(texts: Sequence[Text], references: Sequence[Text]) -> int:
    """How many texts leave their reference at a near-tie of the reference; any other difference fails."""
    count = 0
    for text, reference in zip(texts, references, strict=True):
        pairs = zip(text.ids, reference.ids, strict=False)
        at = next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
        if at is None:
            assert len(text.ids) == len(reference.ids), f"cut short after {text.prompt!r}"
            continue
        gap = max(reference.top[at].values()) - reference.top[at].get(text.ids[at], float("-inf"))
        assert gap <= NEAR_TIE, f"token {at} after {text.prompt!r}: a gap of {gap:.4f}"
        count += 1
    return count


def acceptance(up: Server) -> Acceptance:
    """What the server's counters hold since its start."""
    found = metrics(up.url, timeout_s=5.0)
    assert found is not None
    return total_acceptance(found.acceptance.values())
