"""The reader of vLLM's sources, on a package small enough to see whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from textwrap import dedent

import pytest
from vllmsource.arguments import read_package
from vllmsource.parsercalls import UnknownLayout

from specserve.vllm.arguments import Argument, VllmTable, dumps, loads

FILES = {
    "_version.py": "__version__ = version = '0.34.1'\n",
    "envs.py": """
        environment_variables: dict = {"VLLM_ONE": lambda: 1, "OTHER_TOO": lambda: 2}
    """,
    "utils/argparse_utils.py": """
        class EnableDisableAction: ...
    """,
    "config/__init__.py": """
        from .model import *
        from vllm.config.cache import CacheConfig, SpecConfig
    """,
    "config/model.py": """
        from typing import Literal, TYPE_CHECKING
        if TYPE_CHECKING:
            from elsewhere import Format
        else:
            Format = str
        RunnerType = Literal["generate", "pooling"]
        Runner = Literal["auto", RunnerType]
        class Limits(dict[str, int]): ...
        @config
        class ModelConfig:
            tag: ClassVar[str] = ""
            _hidden: int = 0
            runner: Runner = "auto"
            names: str | list[str] | None = None
            overrides: dict[str, str] | Callable[[], None] = {}
            limits: Limits = {}
            token: bool | str | None = None
            load_format: "str | Format" = "auto"
            max_model_len: SkipValidation[int] = None
            ranks: Literal[8, 16] = 8
    """,
    "config/cache.py": """
        from typing import Literal
        Mode = Literal["a", "b", "gone"]
        @config(config=ConfigDict(arbitrary=True))
        class CacheConfig:
            share: float = 0.9
            size_bytes: int | None = None
            caching: bool | None = None
            mode: Mode | None = None
            extra: SpecConfig | None = None
        @dataclass
        class SpecConfig:
            k: int = 0
    """,
    "config/speculative.py": """
        from typing import Literal
        from vllm.config.model import ModelConfig
        MTPModelTypes = Literal["old_mtp", "mtp"]
        SpeculativeMethod = Literal["ngram", MTPModelTypes]
        @config
        class SpeculativeConfig:
            method: SpeculativeMethod | None = None
            num_speculative_tokens: int = Field(default=None, gt=0)
            rates: list[float] | None = None
            target_model_config: SkipValidation[ModelConfig] = None
    """,
    "engine/arg_utils.py": """
        import json
        from vllm.config import CacheConfig, ModelConfig
        GONE = "gone"
        _MODE_DEPRECATION_MESSAGE = (
            "--cache-mode is deprecated "
            "and will go."
        )
        def _compute_kwargs(cls):
            human_readable_int_args = {"size_bytes"}
        class EngineArgs:
            model: str = ""
            runner: str = ""
            only_python: bool = False
            def add_cli_args(parser):
                model_kwargs = get_kwargs(ModelConfig)
                if True:
                    parser.add_argument("--runner", **model_kwargs["runner"])
                parser.add_argument("--names", "-n", **model_kwargs["names"])
                parser.add_argument("--overrides", **model_kwargs["overrides"])
                parser.add_argument("--limits", **model_kwargs["limits"])
                parser.add_argument("--token", **model_kwargs["token"])
                parser.add_argument("--load-format", **model_kwargs["load_format"])
                parser.add_argument("--max-model-len", **model_kwargs["max_model_len"])
                parser.add_argument("--ranks", **model_kwargs["ranks"])
                cache_kwargs = get_kwargs(CacheConfig)
                cache_kwargs["mode"]["choices"].remove(GONE)
                parser.add_argument("--share", "--portion", dest="share", **cache_kwargs["share"])
                parser.add_argument("--size-bytes", **{**cache_kwargs["size_bytes"], "default": None})
                parser.add_argument("--enable-caching", **cache_kwargs["caching"])
                parser.add_argument("--cache-mode", **cache_kwargs["mode"])
                cache_kwargs["extra"]["type"] = optional_type(json.loads)
                parser.add_argument("--extra", **cache_kwargs["extra"])
                parser.add_argument("--devices", type=lambda s: s.split(","))
                parser.add_argument("--quiet", action="store_true")
                parser.add_argument("--strict", action=argparse.BooleanOptionalAction)
                parser.add_argument("--level", choices=["low", "high"])
        class AsyncEngineArgs(EngineArgs):
            enable_log: bool = False
            def add_cli_args(parser):
                parser.add_argument("--enable-log", action=argparse.BooleanOptionalAction)
    """,
    "entrypoints/common/cli_args.py": """
        import json
        class BaseFrontendArgs:
            template: str | None = None
            template_kwargs: dict[str, str] | None = None
            def _customize_cli_kwargs(cls, frontend_kwargs):
                frontend_kwargs["template_kwargs"]["type"] = json.loads
        class FrontendArgs(BaseFrontendArgs):
            origins: list[str] = []
            middleware: list[str] = []
            def _customize_cli_kwargs(cls, frontend_kwargs):
                frontend_kwargs["origins"]["type"] = json.loads
                del frontend_kwargs["origins"]["nargs"]
                frontend_kwargs["middleware"]["action"] = "append"
        def make_arg_parser(parser):
            parser.add_argument("model_tag", nargs="?")
            parser.add_argument("--headless", action="store_true")
            parser.add_argument("--count", "-c", type=int)
    """,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A package laid out like vLLM 0.33, with one argument of each kind."""
    directory = tmp_path / "vllm"
    for name, text in FILES.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
    return directory


@pytest.fixture
def table(root: Path) -> VllmTable:
    """What the reader makes of it."""
    return read_package(root)


def test_each_annotation_becomes_the_argument_that_vllm_makes_of_it(table: VllmTable) -> None:
    engine = table.engine
    assert engine["runner"] == Argument("runner", "--runner", "str", choices=("auto", "generate", "pooling"))
    assert engine["names"] == Argument("names", "--names", "list", "many", nullable=True, aliases=("-n",))
    assert engine["overrides"] == Argument("overrides", "--overrides", "dict", "json_or_str")
    assert engine["limits"] == Argument("limits", "--limits", "dict", "json")
    assert engine["token"] == Argument("token", "--token", "str", "optional_value")
    assert engine["load_format"] == Argument("load_format", "--load-format", "str")
    assert engine["max_model_len"] == Argument("max_model_len", "--max-model-len", "int", human_int=True)
    assert engine["ranks"] == Argument("ranks", "--ranks", "int", choices=(8, 16))
    assert engine["share"] == Argument("share", "--share", "float", aliases=("--portion",))
    assert engine["size_bytes"] == Argument(
        "size_bytes", "--size-bytes", "int", human_int=True, nullable=True
    )
    assert engine["enable_caching"] == Argument(
        "enable_caching", "--enable-caching", "bool", "flag", negatable=True
    )
    assert engine["extra"] == Argument("extra", "--extra", "dict", "json", nullable=True)


def test_what_an_add_argument_call_says_itself_is_read_too(table: VllmTable) -> None:
    engine = table.engine
    assert engine["devices"] == Argument("devices", "--devices", "list", "comma")
    assert engine["quiet"] == Argument("quiet", "--quiet", "bool", "flag")
    assert engine["strict"] == Argument("strict", "--strict", "bool", "flag", negatable=True)
    assert engine["level"] == Argument("level", "--level", "str", choices=("high", "low"))


def test_a_removed_choice_and_a_deprecation_message_are_seen(table: VllmTable) -> None:
    mode = table.engine["cache_mode"]
    assert mode.choices == ("a", "b")
    assert mode.deprecated == "--cache-mode is deprecated and will go."


def test_a_field_without_a_flag_is_a_keyword_only(table: VllmTable) -> None:
    assert table.engine["only_python"].flag is None
    assert table.engine["model"].flag is None
    assert not {"tag", "_hidden"} & set(table.engine)


def test_async_engine_arguments_are_engine_arguments(table: VllmTable) -> None:
    assert table.engine["enable_log"].flag == "--enable-log"


def test_server_arguments_come_from_fields_from_customising_and_from_the_parser(table: VllmTable) -> None:
    assert table.frontend == {
        "template": Argument("template", "--template", "str", nullable=True),
        "template_kwargs": Argument("template_kwargs", "--template-kwargs", "dict", "json"),
        "origins": Argument("origins", "--origins", "list", "json"),
        "middleware": Argument("middleware", "--middleware", "list", "append"),
        "headless": Argument("headless", "--headless", "bool", "flag"),
        "count": Argument("count", "--count", "int", aliases=("-c",)),
    }


def test_speculation_leaves_out_what_vllm_fills_in_itself(table: VllmTable) -> None:
    assert set(table.speculation) == {"method", "num_speculative_tokens", "rates"}
    assert table.speculation["num_speculative_tokens"].kind == "int"
    assert table.speculation["rates"].kind == "list"
    assert (table.methods, table.method_aliases) == (("mtp", "ngram"), ("old_mtp",))


def test_version_and_environment_are_read(table: VllmTable) -> None:
    assert (table.version, table.minor) == ("0.34.1", "0.34")
    assert table.env == {"VLLM_ONE", "OTHER_TOO"}


def test_option_strings_include_short_forms_and_both_kinds_of_negation(table: VllmTable) -> None:
    options = table.options()
    assert options["-c"] == (table.frontend["count"], False)
    assert options["--no-enable-caching"] == (table.engine["enable_caching"], True)
    assert options["--disable-caching"] == (table.engine["enable_caching"], True)
    assert "--no-quiet" not in options


def test_without_the_paired_action_there_is_no_disable_form(root: Path) -> None:
    (root / "utils" / "argparse_utils.py").write_text("", encoding="utf-8")
    options = read_package(root).options()
    assert "--no-enable-caching" in options
    assert "--disable-caching" not in options


def test_a_table_survives_being_written_and_read(table: VllmTable) -> None:
    assert loads(dumps(table)) == table


def test_each_argument_stands_on_one_line_of_the_json(table: VllmTable) -> None:
    lines = dumps(table).splitlines()
    assert '  "quiet": {"kind": "bool", "form": "flag"},' in lines
    assert '  "only_python": {"flag": null, "kind": "bool", "form": "flag", "negatable": true},' in lines
    assert json.loads(dumps(table))["files"][1] == "entrypoints/common/cli_args.py"


@pytest.mark.parametrize(
    "name",
    ["engine/arg_utils.py", "config/speculative.py", "envs.py", "utils/argparse_utils.py", "_version.py"],
)
def test_a_missing_file_is_named(root: Path, name: str) -> None:
    (root / name).unlink()
    with pytest.raises(UnknownLayout, match=name):
        read_package(root)


def test_server_arguments_in_an_unknown_place_name_the_newest_known_one(root: Path) -> None:
    shutil.rmtree(root / "entrypoints")
    with pytest.raises(UnknownLayout, match=r"entrypoints/common/cli_args\.py"):
        read_package(root)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("engine/arg_utils.py", "class EngineArgs", "class Arguments", "class EngineArgs"),
        ("engine/arg_utils.py", 'kwargs["share"]', 'kwargs["gone"]', r"CacheConfig\.gone"),
        ("entrypoints/common/cli_args.py", "def make_arg_parser", "def parser", "function make_arg_parser"),
        ("config/speculative.py", "SpeculativeMethod =", "Methods =", "SpeculativeMethod"),
        ("envs.py", "environment_variables", "variables", "environment_variables"),
        ("envs.py", "environment_variables", "def", "readable sources"),
    ],
)
def test_a_changed_layout_says_what_is_missing(root: Path, name: str, old: str, new: str, said: str) -> None:
    file = root / name
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(UnknownLayout, match=said):
        read_package(root)
