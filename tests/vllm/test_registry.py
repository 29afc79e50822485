"""The model registries: what ships for each version, and how they are read from sources."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from vllmsource.models import read_registry

from specserve.vllm.registry import dumps, loads, registry, transformers_names
from specserve.vllm.versions import known_versions

SOURCES = {
    "model_executor/models/registry.py": """
        _TEXT_GENERATION_MODELS = {"PlainForCausalLM": ("plain", "PlainForCausalLM")}
        _EMBEDDING_MODELS = {"PlainForCausalLM": ("plain", "PlainForCausalLM"), "BareModel": ("plain", "Bare")}
        _MULTIMODAL_MODELS = {"SplitForConditionalGeneration": ("vllm.models.split", "Split")}
        _SPECULATIVE_DECODING_MODELS = {"EaglePlainForCausalLM": ("gone", "EaglePlain")}
        _PREVIOUSLY_SUPPORTED_MODELS = {"OldForCausalLM": "0.9.2", "PlainForCausalLM": "0.1"}
    """,
    "model_executor/models/interfaces.py": """
        class SupportsPP: ...
        class SupportsEagle3: ...
    """,
    "model_executor/models/plain.py": """
        import torch.nn as nn
        from .interfaces import SupportsEagle3, SupportsPP

        class Bare(nn.Module): ...

        class Decoder(nn.Module):
            supports_aux_hidden_states_over_pp = True

        class PlainForCausalLM(Bare, SupportsPP, SupportsEagle3): ...
    """,
    "models/split/__init__.py": """
        if platform.is_cuda():
            from .nvidia import Split
        else:
            from vllm.model_executor.models.plain import Bare as Split
    """,
    "models/split/nvidia.py": """
        from vllm.model_executor.models.interfaces import SupportsEagle3
        class Split(SupportsEagle3): ...
    """,
    "model_executor/layers/quantization/__init__.py": 'QuantizationMethods = Literal["awq", "fp8"]',
    "config/speculative.py": """
        class SpeculativeConfig:
            def hf_config_override(hf_config):
                if hf_config.model_type in ("wide_v3", "wide_v4") or hf_config.architectures[0] == "DeepForCausalLM":
                    hf_config.model_type = "wide_mtp"
    """,
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        file = tmp_path / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
    return tmp_path / "vllm"


def test_a_class_has_what_its_bases_bring_on_any_platform(package: Path) -> None:
    read = read_registry(package, version="0.99.0")
    assert read.removed == {"OldForCausalLM": "0.9.2"}
    assert read.mtp == {"wide_v3", "wide_v4", "DeepForCausalLM"}
    known = read.classes
    head = known["EaglePlainForCausalLM"]
    assert (known["PlainForCausalLM"].kind, head.kind, head.complete) == ("text", "draft", False)
    assert known["PlainForCausalLM"].traits == {"pp", "eagle3", "aux_pp"}
    assert known["SplitForConditionalGeneration"].traits >= {"eagle3"}
    assert known["BareModel"].lacks("pp") and known["BareModel"].lacks("eagle3")


def test_a_registry_survives_its_file(package: Path) -> None:
    read = read_registry(package, version="0.99.0")
    assert loads(dumps(read)) == read


@pytest.mark.parametrize("minor", known_versions())
def test_every_known_version_has_a_registry(minor: str) -> None:
    known = registry(minor)
    assert known.classes["LlamaForCausalLM"].traits >= {"pp", "eagle3"}
    assert known.classes["Eagle3LlamaForCausalLM"].kind == "draft"
    assert "compressed-tensors" in known.quantizations
    assert {"deepseek_v3", "MiMoForCausalLM"} <= known.mtp
    assert sum(item.kind == "text" for item in known.classes.values()) > 100


def test_the_library_has_what_every_version_takes_from_it() -> None:
    named = {"SmolLM3ForCausalLM", "LlamaForCausalLM", "StarCoder2ForCausalLM", "Starcoder2ForCausalLM"}
    assert named - transformers_names() == {"StarCoder2ForCausalLM"}
