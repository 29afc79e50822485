"""Which models share a tokenizer, by their names on the Hub."""

from __future__ import annotations

import re

_FAMILIES = {
    "Llama 2": r"llama-?2(?!\d*b)|tinyllama|codellama|vicuna|llama-\d+m",
    "Llama 3": r"llama-?3(?!\d*b)",
    "Llama 4": r"llama-?4(?!\d*b)",
    "Qwen 1.5 to 3": r"qwen-?(1\.5|2|2\.5|3)(?![.\d]|b)|qwq",
    "Qwen 3.5 and later": r"qwen-?(3\.[5-9]|[4-9])(?!\d*b)",
    "Gemma 1 and 2": r"gemma-?(1\.1|2)(?![.\d])|gemma-7b",
    "Gemma 3 and 4": r"gemma-?[34](?![.\d])",
    "Mistral": r"mistral|mixtral|ministral|codestral|devstral|magistral",
    "DeepSeek": r"deepseek(?!.*(llama|qwen))",
    "gpt-oss": r"gpt-oss",
    "GLM": r"glm-?[45]",
    "Phi 4": r"phi-?4",
    "OPT": r"opt-[\d.]+[mb]",
    "GPT-2": r"(distil)?gpt-?2",
    "Granite": r"granite-?[34]",
    "OLMo": r"olmo",
    "Falcon": r"falcon",
    "Kimi": r"kimi-k\d",
    "MiniMax": r"minimax-m",
    "Command": r"command-[ra]|aya-",
}
"""Patterns of names. Tokenizers may differ within a family too; between families they do."""
_PATTERNS = {
    family: re.compile(rf"(?:^|[-_.])(?:meta-)?(?:{names})", re.I) for family, names in _FAMILIES.items()
}


def tokenizer_family(model: str) -> str | None:
    """The family whose tokenizer a model of the Hub has, judged by its name; None if it names none, or two."""
    name = model.rpartition("/")[2]
    found = [family for family, pattern in _PATTERNS.items() if pattern.search(name)]
    return found[0] if len(found) == 1 else None
