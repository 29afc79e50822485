"""What `use_heterogeneous_vocab` would keep: the tokens that vLLM's own map keeps."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.models.facts import ModelFacts
from specserve.models.read import read_model
from specserve.models.tokenizercompare import compare, shared_ids, space_prefixes
from specserve.models.vocabulary import Vocabulary, read_huggingface
from tests.checks.checkpoints import checkpoint
from tests.models.tokenizers.made import Document, document

Make = Callable[..., ModelFacts]
KINDS = ("byte_level", "metaspace", "unigram", "wordpiece")


def vocabulary(made: Document) -> Vocabulary:
    return read_huggingface(json.dumps(made).encode())


def test_a_token_beyond_either_embedding_is_dropped() -> None:
    one = vocabulary(document(size=400))
    assert len(shared_ids(one, one)) == 400
    assert len(shared_ids(one, one, target_size=390)) == 390
    assert len(shared_ids(one, one, target_size=390, draft_size=380)) == 380


@pytest.mark.parametrize(
    ("kind", "prefixes"), [("byte_level", "Ġ"), ("metaspace", "Ġ▁"), ("unigram", "▁"), ("wordpiece", "Ġ▁")]
)
def test_the_space_is_found_where_one_token_shows_it(kind: str, prefixes: str) -> None:
    assert space_prefixes(vocabulary(document(kind))) == set(prefixes)


@pytest.mark.vllm
@pytest.mark.parametrize(("target", "draft"), list(itertools.combinations_with_replacement(KINDS, 2)))
def test_the_map_is_the_one_that_vllm_builds(tmp_path: Path, target: str, draft: str) -> None:
    import torch
    from transformers import PreTrainedTokenizerFast
    from vllm.v1.spec_decode.vocab_mapping import VocabMapping

    made = [document(target, size=800), document(draft, size=600)]
    loaded = []
    for place, content in enumerate(made):
        file = tmp_path / f"{place}.json"
        file.write_text(json.dumps(content))
        unknown = content["model"].get("unk_token") or "e"
        loaded.append(PreTrainedTokenizerFast(tokenizer_file=str(file), unk_token=unknown))
    mapping = VocabMapping(*loaded, target_vocab_size=790, draft_vocab_size=700, device=torch.device("cpu"))
    ours = shared_ids(vocabulary(made[0]), vocabulary(made[1]), target_size=790, draft_size=700)
    assert len(ours) == mapping.intersection_size
    theirs = {index: int(other) for index, other in enumerate(mapping.target_to_draft_ids) if other >= 0}
    assert theirs == ours


@pytest.mark.vllm
@pytest.mark.parametrize(
    "draft", ["llama-draft", "llama-draft-foreign", "llama-draft-other-chat", "llama-draft-distant"]
)
def test_the_comparison_tells_how_many_tokens_vllm_would_keep(tmp_path: Path, draft: str) -> None:
    import torch
    from vllm.tokenizers.registry import get_tokenizer
    from vllm.v1.spec_decode.vocab_mapping import VocabMapping

    folders = [checkpoint(tmp_path, name) for name in ("llama", draft)]
    loaded = [get_tokenizer(str(folder)) for folder in folders]
    mapping = VocabMapping(*loaded, target_vocab_size=512, draft_vocab_size=512, device=torch.device("cpu"))
    result = compare(*(read_model(str(folder)) for folder in folders))
    assert mapping.intersection_size == (512 if result.verdict == "identical" else result.shared_tokens)
