"""`ds_nvme_tune` and `ds_io`, run as users run them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ds_aio import throughput
from ds_aio.engine import Options
from ds_aio.sections import AioSection
from ds_aio.sizes import parse_size, show_size
from ds_aio.tune import Point, Space, best_point, command
from ds_aio.tune.plot import grid


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.json"
    values = {"block_size": ["64K", "1M"], "queue_depth": [2, 4], "io_parallel": [1]}
    path.write_text(json.dumps({**values, "overlap_events": ["true", False]}))
    return path


def test_tuning_prints_a_section_the_configuration_takes(
    tmp_path: Path, sweep_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    arguments = ["--nvme_dir", str(tmp_path), "--sweep_config", str(sweep_file), "--loops", "2"]
    arguments += ["--io_size", "1M", "--log_dir", str(logs), "--flush_page_cache", "--verbose"]
    assert command.main(arguments) == 0
    out = capsys.readouterr().out
    assert "Best performance (GB/sec): read =" in out
    section = json.loads((logs / "best.json").read_text())
    assert json.dumps(section, indent=3) in out
    assert AioSection(**section["aio"]).block_size in (65536, 1 << 20)
    assert len(json.loads((logs / "results.json").read_text())) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "sweep.json"]


@pytest.mark.parametrize("switch", ["--no_read", "--no_write"])
def test_half_of_the_tuning_can_be_left_out(
    tmp_path: Path, sweep_file: Path, switch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--nvme_dir", str(tmp_path), "--sweep_config", str(sweep_file), switch]
    assert command.main([*arguments, "--io_size", "64K", "--log_dir", str(tmp_path / "l")]) == 0
    assert f"{switch[5:]} = " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--nvme_dir", "/nowhere"], "/nowhere"),
        (["--nvme_dir", ".", "--gpu"], "no accelerator"),
        (["--nvme_dir", ".", "--sweep_config", "/missing.json"], "missing.json"),
    ],
)
def test_tuning_says_what_is_wrong(
    extra: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(extra) == 1
    assert message in capsys.readouterr().err


def test_an_unknown_setting_of_a_sweep_is_named() -> None:
    with pytest.raises(ValueError, match="blok_size"):
        Space.parse({"blok_size": [1]})
    with pytest.raises(ValueError, match="neither"):
        Space.parse({"single_submit": ["perhaps"]})


def test_the_best_point_weighs_reads_and_writes_alike() -> None:
    points = [
        Point(Options(queue_depth=1), read=10.0, write=1.0),
        Point(Options(queue_depth=2), read=9.0, write=4.0),
        Point(Options(queue_depth=3), read=1.0, write=5.0),
    ]
    assert best_point(points).options.queue_depth == 2


def test_the_heat_map_takes_the_best_over_other_settings() -> None:
    points = [
        Point(Options(block_size=4096, queue_depth=1, intra_op_parallelism=t), t * 1e9, None)
        for t in (1, 3, 2)
    ]
    assert grid(points, "read") == ([4096], [1], [[3.0]])


@pytest.mark.parametrize("extra", [[], ["--read"], ["--pageable", "--single_submit"]])
def test_ds_io_prints_a_rate_and_the_backend(
    tmp_path: Path, extra: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert throughput.main(["--folder", str(tmp_path), "--io_size", "1M", *extra]) == 0
    out = capsys.readouterr().out
    assert "GB/s" in out
    assert "backend: " in out
    assert not list(tmp_path.iterdir())


def test_ds_io_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert throughput.main(["--folder", "/nowhere", "--io_size", "1M"]) == 1
    assert throughput.main(["--io_size", "1M", "--backend", "magic"]) == 1
    assert "magic" in capsys.readouterr().err


SIZES = {"0": 0, "128K": 131072, "1M": 1 << 20, "2GB": 2 << 30, "1.5KiB": 1536, "7": 7}


@pytest.mark.parametrize(("text", "count"), SIZES.items())
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    assert parse_size(text) == count
    assert parse_size(show_size(count)) == count


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="lots"):
        parse_size("lots")


@pytest.mark.parametrize("command_line", [throughput.main, command.main])
@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--io_size", "lots"], "'lots' is no size: write 1048576"),
        (["--io_size", "inf"], "'inf' is no size"),
        (["--io_size", "0"], "at least one byte"),
        (["--io_size=-5"], "at least one byte"),
        (["--io_size", "64K", "--loops", "0"], "whole number of at least 1"),
    ],
)
def test_arguments_that_measure_nothing_are_refused(
    command_line: Callable[[list[str]], int],
    extra: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        command_line(extra)
    assert message in capsys.readouterr().err


def test_a_folder_that_is_a_file_is_told(
    tmp_path: Path, sweep_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert throughput.main(["--folder", str(sweep_file), "--io_size", "64K"]) == 1
    arguments = ["--nvme_dir", str(tmp_path), "--sweep_config", str(sweep_file)]
    arguments += ["--io_size", "64K", "--log_dir", str(sweep_file)]
    assert command.main(arguments) == 1
    assert capsys.readouterr().err.count("sweep.json") >= 2


@pytest.mark.parametrize("text", ["[]", "3", "null", '{"block_size": []}'])
def test_a_sweep_without_values_is_told(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none.json").write_text(text)
    arguments = ["--nvme_dir", str(tmp_path), "--sweep_config", str(tmp_path / "none.json")]
    assert command.main(arguments) == 1
    assert "none.json" in capsys.readouterr().err
