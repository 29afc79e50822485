"""`specserve schema`: what editors read, and the file beside the shipped profiles."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from specserve.cli.app import _run


def test_the_schema_is_valid_and_is_the_one_beside_the_shipped_profiles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run(["schema"]) == 0
    content = json.loads(capsys.readouterr().out)
    jsonschema.validators.validator_for(content).check_schema(content)
    shipped = Path(__file__).parents[2] / "configs" / "profile.schema.json"
    assert content == json.loads(shipped.read_text(encoding="utf-8"))
