"""The schema and the command that print what a configuration may say and says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from deepspeed.config.command import main
from deepspeed.config.schema import config_schema
from ds_core.sections import CheckpointSection, FP16Section

CONFIG = {
    "train_batch_size": 8,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    "mine": 1,
}


@pytest.fixture
def path(tmp_path) -> str:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(CONFIG))
    return str(file)


def test_schema_describes_a_field() -> None:
    section, short = config_schema({"fp16": FP16Section})["properties"]["fp16"]["anyOf"]
    assert short == {"type": "boolean"}
    assert section["properties"]["hysteresis"] == {
        "description": "overflows it takes before the dynamic scale halves",
        "default": 2,
        "anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}],
    }
    assert section["additionalProperties"] is False


def test_schema_describes_nested_sections_and_aliases() -> None:
    properties = config_schema({"checkpoint": CheckpointSection, "bf16": FP16Section})["properties"]
    writer = properties["checkpoint"]["properties"]["writer"]
    assert writer["anyOf"][0]["properties"]["io_buffer_size"]["exclusiveMinimum"] == 0
    assert writer["anyOf"][1] == {"type": "null"}
    assert properties["bfloat16"]["deprecated"] is True
    assert properties["disable_allgather"]["const"] is False


def test_schema_command_prints_every_installed_section(capsys) -> None:
    assert main(["schema"]) == 0
    properties = json.loads(capsys.readouterr().out)["properties"]
    assert {"train_batch_size", "gradient_clipping", "fp16", "optimizer"} <= properties.keys()
    assert all(value.get("description") for value in properties.values())


def test_a_reader_that_stops_early_is_no_error() -> None:
    code = "from deepspeed.config.command import main; raise SystemExit(main(['schema']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


def test_free_form_parameters_are_listed_one_by_one(tmp_path, capsys) -> None:
    params = {"decoupled_weight_decay": True, "momentum_decay": 0.004, "betas": [0.9, 0.95]}
    file = tmp_path / "ds.json"
    optimizer = {"type": "NAdam", "params": params | {"weight_decay": 0.1, "eps": 1e-8}}
    file.write_text(json.dumps({"train_batch_size": 1, "optimizer": optimizer}))
    main(["check", str(file), "--world-size", "1"])
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["momentum_decay", "0.004"] in words
    assert ["betas", "[0.9,", "0.95]"] in words


def test_check_prints_the_resolved_settings(path, capsys) -> None:
    assert main(["check", path, "--world-size", "2", "--params", "1e9", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    assert ["train_micro_batch_size_per_gpu", "4", "derived"] in words
    assert ["enabled", "true"] in words
    assert ["check_grad_overflow", "true", "default"] in words
    assert "note: mine: unknown key, ignored" in lines
    assert ["all", "16.76", "GiB", "device"] in words
    assert lines[-1] == "OK"


def test_check_leaves_defaults_out_unless_asked(path, capsys) -> None:
    assert main(["check", path]) == 0
    out = capsys.readouterr().out
    assert "derived" in out
    assert " default" not in out


@pytest.mark.parametrize(
    ("section", "needs"),
    [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("comet", "comet_ml")],
)
def test_check_names_a_library_that_a_section_needs(
    section, needs, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("deepspeed.config.extras.find_spec", lambda module: None)
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 1, section: {"enabled": True}}))
    assert main(["check", str(file), "--world-size", "1"]) == 1
    assert f"{section}.enabled: true needs the library {needs}" in capsys.readouterr().err


def test_a_schedule_of_torch_is_told_where_it_goes(tmp_path, capsys) -> None:
    file = tmp_path / "ds.json"
    scheduler = {"type": "CosineAnnealingLR", "params": {"T_max": 9}}
    file.write_text(json.dumps({"train_batch_size": 1, "scheduler": scheduler}))
    assert main(["check", str(file), "--world-size", "1"]) == 1
    hint = "initialize(lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR("
    assert hint in capsys.readouterr().err


def test_check_without_a_model_size_says_how_to_get_an_estimate(path, capsys) -> None:
    assert main(["check", path]) == 0
    assert "memory: give --params N for an estimate a rank" in capsys.readouterr().out


def test_check_prints_every_fault(tmp_path, capsys) -> None:
    file = tmp_path / "bad.json"
    file.write_text('{"train_batch_size": 3, "fp16": {"enabeld": true}}')
    assert main(["check", str(file), "--world-size", "2"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "fp16.enabeld: unknown key" in err
    assert "train_batch_size: 3 is not a multiple" in err
    assert err.endswith("bad.json: 2 faults\n")


@pytest.mark.parametrize("size", ["0", "1.5", "-2"])
def test_check_refuses_an_impossible_world_size(path, size, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["check", path, "--world-size", size])
    assert f"{size} is no whole number >= 1" in capsys.readouterr().err


def test_check_names_a_missing_file(capsys) -> None:
    assert main(["check", "no/such.json"]) == 1
    assert "no such configuration: no/such.json" in capsys.readouterr().err
