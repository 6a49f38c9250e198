"""The launcher as programs import it (`from deepspeed.launcher.runner import main`).

Some append to `EXPORT_ENVS` or replace it before they call `main`, so it lies here.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from deepspeed.environment import ENV_FILE_NAME as DEEPSPEED_ENVIRONMENT_NAME
from deepspeed.launcher import cli, hosts, options
from deepspeed.launcher.cluster import EXPORTED_PREFIXES
from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.local import encode_world as encode_world_info
from deepspeed.launcher.options import DEFAULT_HOSTFILE as DLTS_HOSTFILE
from deepspeed.launcher.options import LaunchOptions
from deepspeed.legacy import fallback

__all__ = [
    "DEEPSPEED_ENVIRONMENT_NAME",
    "DLTS_HOSTFILE",
    "EXPORT_ENVS",
    "encode_world_info",
    "fetch_hostfile",
    "main",
    "parse_args",
    "parse_inclusion_exclusion",
    "parse_node_config",
    "parse_node_config_list",
    "parse_resource_filter",
    "run_autotuning",
]

EXPORT_ENVS: list[str] = list(EXPORTED_PREFIXES)
"""Prefixes of the variables that ranks on other machines get; `main` reads it when called."""


def main(args: Sequence[str] | None = None) -> None:
    """Start a job and wait for its end; exits with its code when that is not 0."""
    code = cli.main(args, prefixes=tuple(EXPORT_ENVS))
    if code:
        sys.exit(code)


def parse_args(args: Sequence[str] | None = None) -> LaunchOptions:
    """Read a command line."""
    return options.parse(sys.argv[1:] if args is None else args)


def fetch_hostfile(hostfile_path: str | None) -> OrderedDict[str, int] | None:
    """Host -> number of slots; None when there is no such file and it is the default one."""
    if hostfile_path is None:
        return None
    pool = hosts.read_hostfile(hostfile_path, required=hostfile_path != DLTS_HOSTFILE)
    return None if pool is None else OrderedDict(pool)


def parse_inclusion_exclusion(
    resource_pool: Mapping[str, int], inclusion: str, exclusion: str
) -> OrderedDict[str, list[int]]:
    """The slots that the filters leave of host -> number of slots."""
    pool = hosts.all_slots(resource_pool)
    return OrderedDict(hosts.select(pool, include=inclusion, exclude=exclusion))


def parse_resource_filter(
    host_info: Mapping[str, Sequence[int]], include_str: str = "", exclude_str: str = ""
) -> OrderedDict[str, list[int]]:
    """The slots that the filters leave of host -> slots."""
    return OrderedDict(hosts.select(host_info, include=include_str, exclude=exclude_str))


def parse_node_config(node_config: str) -> tuple[str, list[int]]:
    """Host and slots of `HOST:SLOT,SLOT`; no slots where none are given."""
    host, colon, slots = node_config.rpartition(":")
    if not colon:
        return node_config, []
    return host, hosts.numbers(slots, what=node_config)


def parse_node_config_list(node_config_list: Sequence[str]) -> dict[str, list[int]]:
    """Host -> slots of several `HOST:SLOT,SLOT`."""
    return dict(map(parse_node_config, node_config_list))


def run_autotuning(args: object, active_resources: object) -> None:
    """Refused: raises `LaunchError`."""
    raise LaunchError("run_autotuning: tuning is not part of this installation")


__getattr__ = fallback(__name__)
