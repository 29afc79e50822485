"""The vocabulary of a model, from whichever file holds it. Does not compare."""

from __future__ import annotations

from specserve.facts.model import ModelFacts
from specserve.facts.tokenizers import huggingface, tekken
from specserve.facts.tokenizers.additions import additions
from specserve.facts.tokenizers.files import Kind, Unreadable, content, needed, parsed, vocabulary_file
from specserve.facts.tokenizers.sentencepiece import pieces
from specserve.facts.tokenizers.vocabulary import Vocabulary, checked, listed, with_added

NO_FILES = (
    "`{}` ships no tokenizer file that is read here: tokenizer.json, vocab.json, tokenizer.model, tekken.json"
)


def source(facts: ModelFacts) -> tuple[str, Kind]:
    """The file of the vocabulary. Raises Unreadable where there is none."""
    found = vocabulary_file(facts)
    if found is None:
        raise Unreadable(NO_FILES.format(facts.model))
    return found


def read_vocabulary(facts: ModelFacts) -> Vocabulary:
    """What each id of a model's tokenizer means. Raises Unreadable."""
    name, kind = source(facts)
    data = content(needed(facts, name))
    special: frozenset[int] = frozenset()
    match kind:
        case "tekken":
            return tekken.read(data, source=name)
        case "tokenizer.json":
            return huggingface.read(data, additions=additions(facts), source=name)
        case "vocab.json":
            vocab = checked(parsed(data, name=name), source=name)
        case "sentencepiece":
            texts, special = pieces(data, source=name)
            vocab = listed(texts, source=name)
        case "vocab.txt":
            vocab = listed(data.decode("utf-8", errors="replace").splitlines(), source=name)
    return with_added(vocab, additions(facts), source=name, special=special)
