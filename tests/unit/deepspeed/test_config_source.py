"""Where a configuration may come from, and what happens if it comes from two places."""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path

import pytest

from deepspeed.config import ConfigError, load_config, resolve_source
from deepspeed.config.legacy import load_ds_config
from deepspeed.config.tolerant import strict_json

CONFIG = {"train_batch_size": 4, "steps_per_print": 10}


def base64_text(config: dict) -> str:
    return base64.urlsafe_b64encode(json.dumps(config).encode()).decode()


def test_dict_file_and_base64_read_the_same(tmp_path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG))
    for source in (CONFIG, str(path), path, base64_text(CONFIG), base64_text(CONFIG).rstrip("=")):
        assert load_config(source, world_size=1, sections={}).raw == CONFIG
        assert load_ds_config(source) == CONFIG


def test_file_may_have_comments_and_trailing_commas(tmp_path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(
        '{ // line\n "a#b": "//x", # other\n /* block */ "train_batch_size": 5e0,\n'
        ' "l": [1, 2, ], // end\n}\n'
    )
    assert load_ds_config(path) == {"a#b": "//x", "train_batch_size": 5.0, "l": [1, 2]}


def test_comments_keep_positions() -> None:
    text = '{ /* a\nb */ "x": 1, // c\n}'
    assert len(strict_json(text)) == len(text)
    assert strict_json(text).count("\n") == 2


@pytest.mark.parametrize("source", ["no/such/file.json", "x" * 5000, "bm8gSlNPTg=="])
def test_missing_file_is_named(source) -> None:
    with pytest.raises(ConfigError, match="is neither a file nor base64 of JSON"):
        load_config(source)


def test_other_types_are_refused() -> None:
    with pytest.raises(ConfigError, match="the configuration is list, expected a dict"):
        load_config(["x"])  # type: ignore[arg-type]


def test_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="key 3 is no text"):
        load_config({"train_batch_size": 1, 3: 4})


@pytest.mark.parametrize(
    ("args", "config", "config_params"),
    [
        (None, CONFIG, None),
        (None, None, CONFIG),
        (argparse.Namespace(deepspeed_config=CONFIG), None, None),
        ({"deepspeed_config": CONFIG, "local_rank": 0}, None, None),
        (argparse.Namespace(deepspeed_config=base64_text(CONFIG)), None, None),
        (argparse.Namespace(deepspeed_config=None, device_rank=0), CONFIG, None),
        ({"local_rank": 0}, CONFIG, CONFIG),
        (argparse.Namespace(deepspeed_config=base64_text(CONFIG)), dict(CONFIG), None),
        (argparse.Namespace(deepscale_config=CONFIG), None, None),
    ],
)
def test_one_configuration_is_found(args, config, config_params) -> None:
    found = resolve_source(args, config, config_params)
    assert load_config(found, world_size=1, sections={}).raw == CONFIG


def test_same_file_under_two_names_is_one_configuration(tmp_path) -> None:
    path = Path(tmp_path / "ds.json")
    path.write_text(json.dumps(CONFIG))
    assert resolve_source(argparse.Namespace(deepspeed_config=str(path)), CONFIG) == CONFIG


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({**CONFIG, "steps_per_print": 5}, "steps_per_print is 5 in one, 10 in the other"),
        ({**CONFIG, "fp16": {}}, "only one has fp16"),
    ],
)
def test_two_different_configurations_raise_with_both_places(other, difference) -> None:
    args = argparse.Namespace(deepspeed_config=CONFIG)
    with pytest.raises(ConfigError) as caught:
        resolve_source(args, other)
    assert str(caught.value) == (
        f"config and args.deepspeed_config are two different configurations ({difference}); "
        "pass one"
    )


def test_config_and_config_params_that_differ_raise() -> None:
    with pytest.raises(ConfigError, match="config and config_params are two different"):
        resolve_source(None, CONFIG, {"train_batch_size": 1})


def test_no_configuration_raises() -> None:
    with pytest.raises(ConfigError, match="no configuration: pass config"):
        resolve_source(argparse.Namespace(local_rank=0))
