"""The command `ds_config`: check a configuration without training, print the schema."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from deepspeed.config.extras import missing_extras
from deepspeed.config.load import inspect_config
from deepspeed.config.memory import memory_lines
from deepspeed.config.report import settings_lines
from deepspeed.config.schema import config_schema
from deepspeed.config.sections import InstalledSections
from deepspeed.console import printing
from ds_core.errors import ConfigError


@printing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1 if the configuration has a fault."""
    options = _parser().parse_args(arguments)
    try:
        return _schema() if options.command == "schema" else _check(options)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ds_config", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check", help="print what is set, a memory estimate, and OK or every fault"
    )
    check.add_argument("file", help="JSON file, or base64 of JSON")
    check.add_argument(
        "--world-size", type=_positive, help="data-parallel ranks (default: as the environment)"
    )
    check.add_argument(
        "--params", type=_positive, help="parameters of the model, for the memory estimate"
    )
    check.add_argument("--all", action="store_true", help="print the defaults too")
    commands.add_parser("schema", help="print the JSON Schema of all installed sections")
    return parser


def _schema() -> int:
    json.dump(config_schema(InstalledSections()), sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")
    return 0


def _check(options: argparse.Namespace) -> int:
    config, faults = inspect_config(options.file, world_size=options.world_size)
    faults = (*faults, *missing_extras(config))
    lines = [f"note: {notice}" for notice in config.notices]
    if not faults:
        settings = settings_lines(config, defaults=options.all)
        lines = [*settings, "", *memory_lines(config, options.params), *lines, "OK"]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    if faults:
        count = len(faults)
        sys.stderr.write(f"{config.label}: {count} fault{'' if count == 1 else 's'}\n")
    return 1 if faults else 0


def _positive(text: str) -> int:
    value = float(text)
    if value < 1 or not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text} is no whole number >= 1")
    return int(value)


if __name__ == "__main__":
    sys.exit(main())
