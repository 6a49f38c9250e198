"""Code blocks of the READMEs and pages, and what a command in one of them must be."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\s*")
COMMAND = re.compile(r"(\$ )?(deepspeed|ds[-_]\w+|zero_to_fp32|python|nox|pip|torchrun)\b")
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
FOREIGN = ("pip", "source", "cd")


@dataclass(frozen=True)
class Block:
    """A block of code: its page, language, file name if it has one, text, first line."""

    page: str
    language: str
    title: str | None
    code: str
    line: int


def pages() -> list[str]:
    """Every page, as a path in the repository."""
    patterns = ["README.md", "packages/*/README.md", "docs/**/*.md", "examples/*/README.md"]
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [str(path.relative_to(ROOT)) for path in found]


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """The fenced blocks of a page, and the indented ones, which are commands or output."""
    return tuple(_blocks(page))


def _blocks(page: str) -> Iterator[Block]:
    lines = (ROOT / page).read_text().splitlines()
    number = 0
    while number < len(lines):
        start, fence = number, FENCE.fullmatch(lines[number])
        number += 1
        if fence is not None:
            while lines[number].rstrip() != "```":
                number += 1
            code = "\n".join(lines[start + 1 : number]) + "\n"
            yield Block(page, fence["language"], fence["title"], code, start + 1)
            number += 1
        elif lines[start].startswith("    ") and (start == 0 or not lines[start - 1].strip()):
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            code = "\n".join(line[4:] for line in lines[start:number])
            yield Block(page, "indented", None, code, start + 1)


def commands(block: Block) -> list[list[str]]:
    """The commands of a block, as words; what is no command is their output."""
    text = block.code.replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        if line.startswith("$ ") or (block.language != "console" and COMMAND.match(line)):
            for part in line.removeprefix("$ ").split("&&"):
                found.append(shlex.split(part, comments=True))
    return found


def check_command(words: list[str], page: str) -> None:
    """Raise AssertionError if the program, the script or an option is not there."""
    if words[:2] == ["python", "-m"]:
        words = words[2:]
    program, *rest = words
    if program == "nox":
        _check_nox(rest, page)
    elif program in ("python", "deepspeed", "torchrun"):
        _check_script(program, rest, page)
    elif program not in FOREIGN:
        _check_options(rest, help_of(program, *_subcommand(program, rest)), program)


def _check_script(program: str, rest: list[str], page: str) -> None:
    """`program OPTIONS SCRIPT OPTIONS`."""
    place = next((n for n, word in enumerate(rest) if word.endswith(".py")), None)
    own = rest if place is None else rest[:place]
    if program == "deepspeed":
        _check_options(own, help_of("deepspeed"), program)
    assert place is not None or program != "python", f"no script in {rest}"
    if place is None:
        return
    script = find_script(rest[place], page)
    _check_options(rest[place + 1 :], " ".join(options_in(script)), script.name)


def find_script(name: str, page: str) -> Path:
    """A script beside the page or in the repository, or one that the page itself holds."""
    for folder in ((ROOT / page).parent, ROOT):
        if (folder / name).exists():
            return folder / name
    assert any(name == block.title for block in blocks(page)), f"{page}: no script {name}"
    return ROOT / page


def options_in(script: Path) -> set[str]:
    """What looks like an option in the texts of a program and of the modules beside it."""
    if script.suffix == ".md":
        text = "\n".join(b.code for b in blocks(str(script.relative_to(ROOT))) if b.title)
        return set(OPTION.findall(text)) | _library_options()
    found: set[str] = set()
    for file in (script, *script.parent.glob("*.py")):
        tree = ast.parse(file.read_text())
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        found |= {text for text in texts if isinstance(text, str) and text.startswith("-")}
    return found | _library_options()


@cache
def _library_options() -> set[str]:
    """What `add_config_arguments` and `add_tuning_arguments` bring."""
    import argparse

    import deepspeed

    parser = deepspeed.add_tuning_arguments(argparse.ArgumentParser())
    return set(OPTION.findall(deepspeed.add_config_arguments(parser).format_help()))


def _check_nox(rest: list[str], page: str) -> None:
    own, _, passed = " ".join(rest).partition("-- ")
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    sessions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    named = [word.partition("(")[0] for word in own.split() if not word.startswith("-")]
    assert set(named) <= sessions, f"no nox session {sorted(set(named) - sessions)}"
    if "bench" in named and passed:
        assert (ROOT / "benchmarks" / f"{passed.split()[0]}.py").exists(), passed


def _check_options(words: list[str], known: str, program: str) -> None:
    spelled = {word.partition("=")[0] for word in words if OPTION.fullmatch(word.partition("=")[0])}
    missing = spelled - set(OPTION.findall(known))
    assert not missing, f"{program} has no option {', '.join(sorted(missing))}"


def _subcommand(program: str, rest: list[str]) -> list[str]:
    if rest and not rest[0].startswith("-") and f"{rest[0]}" in help_of(program).split("}")[0]:
        return rest[:1]
    return []


@cache
def help_of(program: str, *arguments: str) -> str:
    """What `program --help` prints, run in this process."""
    points = entry_points(group="console_scripts", name=program)
    assert points, f"{program} is no command of an installed package"
    main = next(iter(points)).load()
    output = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [program, *arguments, "--help"]),
        contextlib.redirect_stdout(output),
        contextlib.suppress(SystemExit),
    ):
        main()
    return output.getvalue()
