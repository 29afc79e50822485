"""Conversion as a whole: golden profiles, profiles that lint, no secret in any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.convert.convert import Converted, converted
from specserve.convert.reading import read
from specserve.errors import UsageError
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from tests.convert.sources import SOURCES

Golden = Callable[[str, str], None]


def convert(text: str, *, file: str = "serve.sh", folder: Path = Path("nowhere")) -> Converted:
    return converted(read(text, file=file, folder=folder)[0], origin=file)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Profile]:
    """The profile of a text."""

    def of(text: str, *, file: str = "serve.sh") -> Profile:
        path = tmp_path / "made.yaml"
        path.write_text(convert(text, file=file, folder=tmp_path).text, encoding="utf-8")
        return load_profile(path)

    return of


@pytest.mark.parametrize("name", SOURCES)
def test_what_circulates_converts_to_a_profile_that_says_what_changed(name: str, golden: Golden) -> None:
    file, text = SOURCES[name]
    golden(f"convert/{name}.yaml", convert(text, file=file).text)


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_written_is_a_valid_profile(name: str, made: Callable[..., Profile]) -> None:
    file, text = SOURCES[name]
    assert made(text, file=file).target.model


@pytest.mark.parametrize("name", SOURCES)
def test_each_note_stands_in_the_profile_as_a_comment(name: str) -> None:
    file, text = SOURCES[name]
    result = convert(text, file=file)
    comments = " ".join(
        line.strip().removeprefix("#").strip()
        for line in result.text.splitlines()
        if line.strip().startswith("#")
    )
    assert all(note.text in comments for note in result.notes)


@pytest.mark.parametrize("name", SOURCES)
def test_no_secret_of_the_source_is_in_the_profile_or_its_notes(name: str) -> None:
    file, text = SOURCES[name]
    result = convert(text, file=file)
    said = result.text + " ".join(note.text for note in result.notes)
    assert "hf_abcdefghijklmnopqrst" not in said and "sk-0123456789abcdefghij" not in said


def test_flags_of_old_become_one_block_of_speculation(made: Callable[..., Profile]) -> None:
    profile = made(SOURCES["llm-70b"][1], file="offline.py")
    assert profile.speculation is not None
    assert dict(profile.speculation.keys) == {
        "method": "draft_model",
        "model": "Qwen/Qwen2-7B-Instruct",
        "num_speculative_tokens": 5,
    }
    assert (profile.target.tensor_parallel_size, dict(profile.engine)) == (4, {"gpu_memory_utilization": 0.9})


def test_a_draft_on_one_rank_is_split_like_its_target(made: Callable[..., Profile]) -> None:
    profile = made(SOURCES["api-server"][1])
    assert profile.speculation is not None
    assert "draft_tensor_parallel_size" not in profile.speculation.keys
    assert profile.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_a_key_becomes_the_name_of_its_variable(made: Callable[..., Profile]) -> None:
    assert made("vllm serve a/b --api-key sk-0123456789abcdefghij").server.api_key_env == "VLLM_API_KEY"
    assert made("vllm serve a/b --api-key $MY_KEY").server.api_key_env == "MY_KEY"
    assert made("VLLM_API_KEY=secret vllm serve a/b").server.api_key_env == "VLLM_API_KEY"


def test_a_server_open_to_all_without_a_key_is_closed_and_one_with_a_key_is_not(
    made: Callable[..., Profile],
) -> None:
    assert made("vllm serve a/b --host 0.0.0.0").server.host == "127.0.0.1"
    assert made("vllm serve a/b --host 0.0.0.0 --api-key $KEY").server.host == "0.0.0.0"


def test_an_option_of_a_newer_vllm_narrows_the_range(made: Callable[..., Profile]) -> None:
    assert made("vllm serve a/b --monokernel").vllm == ">=0.33"
    assert made("vllm serve a/b --max-num-seqs 8").vllm is None


def test_an_option_that_nobody_knows_is_left_out_and_noted(made: Callable[..., Profile]) -> None:
    text = "vllm serve a/b --frobnicate 3"
    assert dict(made(text).engine) == {}
    assert [note.text for note in convert(text).notes] == [
        "`--frobnicate` is left out: no vLLM that specserve knows has it"
    ]


def test_a_value_that_vllm_would_refuse_is_left_out_and_noted(made: Callable[..., Profile]) -> None:
    text = "vllm serve a/b --max-num-seqs many --runner f17"
    assert dict(made(text).engine) == {}
    assert len(convert(text).notes) == 2


@pytest.mark.parametrize(
    "config",
    [
        '{"method": "medusa", "model": "org/medusa", "num_speculative_tokens": 3}',
        '{"method": "extract_hidden_states", "num_speculative_tokens": 1}',
        '{"method": "ngram", "num_speculative_tokens": 0}',
    ],
)
def test_speculation_that_is_none_any_more_is_left_out_whole_and_noted(
    config: str, made: Callable[..., Profile]
) -> None:
    text = f"vllm serve a/b --speculative-config '{config}'"
    assert made(text).speculation is None
    assert any(note.text.startswith("speculation is left out") for note in convert(text).notes)


def test_a_text_that_does_not_say_the_model_is_an_error() -> None:
    with pytest.raises(UsageError, match="names no model"):
        convert("vllm serve --port 8000")
    with pytest.raises(UsageError, match="which the text does not say"):
        convert("vllm serve $MODEL")


def test_an_argument_file_is_read_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text(
        "tensor-parallel-size: 2\nno-enable-prefix-caching: true\nport: 9000\n"
        """speculative-config: '{"method": "mtp", "num_speculative_tokens": 1}'\n"""
    )
    text = convert("vllm serve a/b --config args.yaml --port 8001", folder=tmp_path).text
    assert "tensor_parallel_size: 2" in text and "enable_prefix_caching: false" in text
    assert "port: 8001" in text and "method: mtp" in text


def test_an_argument_file_that_vllm_would_ignore_is_ignored_and_noted(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("tensor-parallel-size: 2\n")
    result = convert("vllm serve a/b --config=args.yaml", folder=tmp_path)
    assert "tensor_parallel_size" not in result.text
    assert "vLLM ignores `--config=FILE`" in result.notes[0].text


def test_variables_and_options_that_became_keys_are_moved_there(made: Callable[..., Profile]) -> None:
    text = (
        "export VLLM_ATTENTION_BACKEND=FLASH_ATTN_VLLM_V1 VLLM_ALL2ALL_BACKEND=deepep_low_latency\n"
        "vllm serve org/m --num-redundant-experts 32 --eplb-window-size 100 --enable-eplb"
    )
    engine = made(text).engine
    assert engine["attention_backend"] == "FLASH_ATTN"
    assert engine["all2all_backend"] == "deepep_low_latency"
    assert engine["eplb_config"] == {"num_redundant_experts": 32, "window_size": 100}


def test_keys_that_vllm_lacks_are_left_out_and_names_that_a_plug_in_may_bring_stay(
    made: Callable[..., Profile],
) -> None:
    text = (
        """vllm serve org/m --compilation-config '{"use_inductor": false, "mode": 3}'"""
        " --enable-auto-tool-choice --tool-call-parser mine"
    )
    profile = made(text)
    assert profile.engine["compilation_config"] == {"mode": 3}
    assert profile.frontend["tool_call_parser"] == "mine"
    assert profile.vllm is None
