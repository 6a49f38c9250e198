"""Every form of a report tells the same numbers."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ds_profiler import (
    FlopsProfiler,
    Profile,
    UsageError,
    chrome_trace,
    compare,
    comparison_text,
    estimate_training_memory,
    get_model_profile,
    html_report,
    profile,
    rich_table,
    text_report,
    write_report,
)
from ds_profiler.command import main
from ds_profiler.profiler import RunFacts
from ds_profiler.report.write import form_of
from ds_profiler.units import duration_to_string, number_to_string


class Net(nn.Module):
    """Two layers, an activation used twice, a name that HTML must escape."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.GELU()
        self.body = nn.Sequential(nn.Linear(4, 8), act, nn.Linear(8, 4), act)

    def extra_repr(self) -> str:
        return "</script><b>"

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def result() -> Profile:
    return profile(Net(), torch.randn(2, 4), backward=True, peak_flops=1e12)


@pytest.mark.parametrize(
    "line",
    [
        r"^params per GPU: +76$",
        r"^fwd MACs per GPU: +128 MACs$",
        r"^fwd flops per GPU: +280 $",
        r"^bwd MACs per GPU \(counted\): +192 MACs$",
        r"^fwd latency: +[\d.]+ [mu]?s$",
        r"^batch size per GPU: +2$",
        r"^depth 2:$",
        r"^    MACs        - \{'Linear': '128 MACs'\}$",
        r"^Net\($",
        r"^  \(body\): Sequential\($",
        r"^    \(0\): Linear\(40 = 52.63% Params, 64 MACs = 50% MACs, .*in_features=4",
        r"^    \(3\): GELU\(shared with body.1\)$",
        r"^utilisation of the device's peak \(MFU\): ",
    ],
)
def test_the_text_has_the_sections_of_the_reference(result: Profile, line: str) -> None:
    assert re.search(line, text_report(result), re.MULTILINE)


def test_the_text_can_be_short(result: Profile) -> None:
    text = text_report(result, detailed=False, module_depth=1)
    assert "Detailed" not in text
    assert "depth 1:" in text
    assert "depth 0:" not in text


def test_uncounted_operators_are_in_the_text(result: Profile) -> None:
    lacking = Profile(root=result.root, uncounted={"my::op": 3})
    assert "my::op: 3 calls" in text_report(lacking)
    assert "my::op" in html_report(lacking)


def test_the_page_carries_the_numbers_of_the_json(result: Profile) -> None:
    page = html_report(result)
    embedded = re.search(r'id="profile">(.*?)</script>', page, re.DOTALL)
    assert embedded is not None
    assert json.loads(embedded[1]) == json.loads(json.dumps(result.to_dict()))
    assert "{{" not in page
    assert "http" not in page.lower().replace("http-equiv", "")


def test_the_trace_nests_children_in_their_parents(result: Profile) -> None:
    spans = {
        (span["tid"], span["name"]): span
        for span in chrome_trace(result)["traceEvents"]
        if span["ph"] == "X"
    }
    outer, inner = spans[0, "body"], spans[0, "body.2"]
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-6
    assert inner["args"]["macs"] == 64


def test_the_table_lists_each_module(result: Profile) -> None:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=160).print(rich_table(result))
    assert "body" in out.getvalue()
    assert "shared with body.1" in out.getvalue()


@pytest.mark.parametrize("width", [120, 80, 60, 40, 20])
def test_no_value_of_the_table_breaks_where_it_is_narrow(width: int) -> None:
    from rich.console import Console

    result = profile(nn.Sequential(nn.Linear(640, 256), nn.GELU()), torch.randn(8, 640))
    out = io.StringIO()
    Console(file=out, width=width).print(rich_table(result))
    lines = out.getvalue().splitlines()
    assert len(lines) == 4 + 3 + 1  # title, heading with its lines, a line a module, the end
    assert max(map(len, lines)) <= width
    assert ("Sequential" in out.getvalue()) or width < 40
    assert ("…" in out.getvalue()) == (width < 40)
    assert number_to_string(result.flops).strip() in out.getvalue()


def test_the_table_names_what_is_not_counted_whole() -> None:
    from rich.console import Console

    result, out = profile(nn.ReLU(), torch.ones(2)), io.StringIO()
    lacking = Profile(root=result.root, uncounted={"my_library::[operator]": 3})
    Console(file=out, width=60).print(rich_table(lacking))
    assert "not counted: my_library::[operator], 3 calls" in out.getvalue()


def test_a_profile_prints_as_one_line(result: Profile) -> None:
    line = r"Profile\(Net on cpu: 76 params, fwd 280 flops, bwd [\d.]+ flops, fwd .*, modules 6; "
    assert re.match(line, str(result))
    assert len(repr(result)) < 200
    linear = r"ModuleProfile\('body.0': Linear, 40 params, fwd 128 flops, .*s\)$"
    assert re.match(linear, repr(result["body.0"]))
    assert repr(result["body.3"]) == "ModuleProfile('body.3': GELU, shared with 'body.1')"


def test_a_report_of_an_unknown_form_is_refused(result: Profile, tmp_path: Path) -> None:
    known = r"x\.pdf'.* ends in \.html, \.trace\.json, \.json, \.txt, \.log"
    with pytest.raises(UsageError, match=known):
        write_report(result, tmp_path / "x.pdf")
    assert not list(tmp_path.iterdir())
    write_report(result, tmp_path / "x.out", form="json")
    assert Profile.load(tmp_path / "x.out") == result
    assert form_of("flops.out", unknown="text") == "text"
    write_report(result, tmp_path / "report")
    assert "Profile Summary" in (tmp_path / "report").read_text()


def test_a_comparison_names_what_changed(result: Profile) -> None:
    other = Net()
    other.body[0] = nn.Linear(4, 8, bias=False)
    changes = compare(result, profile(other, torch.randn(2, 4), backward=True), tolerance=1e9)
    assert {(c.module, c.measure) for c in changes} >= {("body.0", "params"), ("", "params")}
    (params,) = [c for c in changes if (c.module, c.measure) == ("body.0", "params")]
    assert (params.before, params.after, params.ratio) == (40, 32, 0.8)
    assert "body.0" in comparison_text(changes)
    text = comparison_text(compare(result, Profile(root=replace(result.root, forward_seconds=9.0))))
    assert re.search(r"^\(model\) +forward time +[\d.]+ [mu]s +9 s", text, re.MULTILINE)
    assert comparison_text(compare(result, result)) == "no differences"


def test_training_memory_follows_from_a_profile(result: Profile) -> None:
    memory = estimate_training_memory(result)
    assert (memory.parameters, memory.gradients, memory.optimizer) == (304, 304, 608)
    assert memory.total == 1216 + result.root.activation_bytes


def test_the_profiler_reports_with_the_facts_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    facts = RunFacts(samples=2, world_size=4, data_parallel=4, step_seconds=0.5)
    with FlopsProfiler(Net(), facts) as profiler:
        profiler.model(torch.randn(2, 4))
    profiler.print_model_profile(profile_step=7, detailed=False)
    text = capsys.readouterr().out
    assert "Profile Summary at step 7:" in text
    assert re.search(r"^step latency: +500 ms$", text, re.MULTILINE)
    assert re.search(r"^samples/second: +1\d\.\d\d$", text, re.MULTILINE)
    assert profiler.get_total_params(as_string=True) == "76"
    assert profiler.get_total_macs(as_string=True) == "128 MACs"
    profiler.print_model_aggregated_profile()
    assert "Aggregated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 "), (5, "5 "), (1234, "1.23 K"), (61_100_840, "61.1 M"), (0.5, "500 m")],
)
def test_numbers_read_as_in_the_reference(value: float, text: str) -> None:
    assert number_to_string(value) == text


def test_durations_pick_their_unit() -> None:
    assert [duration_to_string(s) for s in (1.89, 0.07667, 3.409e-05)] == [
        "1.89 s",
        "76.67 ms",
        "34.09 us",
    ]


def test_the_model_keeps_its_mode_and_the_report_goes_to_the_file(tmp_path: Path) -> None:
    model = Net().train()
    out = tmp_path / "deep" / "report.txt"
    counts = get_model_profile(model, (2, 4), as_string=False, output_file=out)
    assert counts == (280, 128, 76)
    assert "Aggregated Profile" in out.read_text()
    assert model.training


def test_ignored_modules_are_left_out() -> None:
    flops, macs, _ = get_model_profile(
        Net(), (2, 4), print_profile=False, as_string=False, ignore_modules=[nn.Linear]
    )
    assert (flops, macs) == (24, 0)


FACTORY = (
    "import torch.nn as nn\ndef make():\n    return nn.Sequential(nn.Linear(4, 8), nn.ReLU())\n"
)


@pytest.mark.parametrize("flags", [[], ["--meta"], ["--backward", "--train"]])
def test_the_command_writes_each_form(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    (tmp_path / "made_by_a_test.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    files = ["out.json", "out.html", "out.trace.json", "out.txt"]
    outputs = [part for file in files for part in ("-o", file)]
    assert main(["made_by_a_test:make", "--input", "2x4", *flags, *outputs]) == 0
    assert capsys.readouterr().out == "".join(f"written: {file}\n" for file in files)
    assert Profile.load("out.json").macs == 64
    assert all(Path(file).stat().st_size > 300 for file in files)
    assert main(["compare", "out.json", "out.json"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["torch.nn"], "module:factory"),
        (["no_such_module:make"], "no_such_module"),
        (["torch.nn:Identity", "--input", "1xx2"], "SIZExSIZE"),
        (["torch.nn:Identity", "--input", "2:floaty"], "float32"),
        (["torch:zeros_like"], "torch.nn.Module"),
        (["compare", "one.json"], "two JSON files"),
        (["compare", "/no.json", "/no.json"], "cannot read: "),
        ([":make"], "module:factory"),
        (["torch.nn:Linear"], "cannot be called without arguments: missing a required"),
        (["torch:pi"], "'torch:pi' is a float, not a factory"),
        (["torch.nn:Identity", "a.json"], "'a.json': only compare takes files"),
        (["torch.nn:Identity", "--device", "no"], "--device 'no': "),
        (["torch.nn:Identity", "--input", "9999999999x9999999999"], "--input '9999999999x"),
        (["torch.nn:Identity", "-o", "x.pdf"], "'x.pdf': a report's name ends in"),
        (["torch.nn:Identity", "--input", "2x4", "-o", "/"], "cannot write: "),
    ],
)
def test_the_command_explains_what_is_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments == ["torch:zeros_like"]:
        arguments = ["builtins:dict"]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_names_that_look_like_markup_stay_in_the_table() -> None:
    from rich.console import Console

    result = profile(nn.ModuleDict({"[red]": nn.ReLU(), "[/dim]": nn.ReLU()}), call=lambda: None)
    file = io.StringIO()
    Console(file=file, width=200).print(rich_table(result))
    text = file.getvalue()
    assert "[red]" in text
    assert "[/dim]" in text


@pytest.mark.parametrize("text", ["{}", "[1]", "x", '{"format": 1}'])
def test_a_file_that_is_no_profile_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=r"a\.json holds no profile"):
        Profile.load(tmp_path / "a.json")


def test_the_command_ends_in_silence_once_its_reader_is_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    call = "main(['torch.nn:Identity', '--input', '2x4'])"
    done = subprocess.run(
        [sys.executable, "-c", f"from ds_profiler.command import main; raise SystemExit({call})"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
