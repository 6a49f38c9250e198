"""Hostfiles, and the filters that pick hosts and slots from them (no side effects)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.options import nearest

Slots = dict[str, list[int]]
"""Host -> the slots used on it, both in the order of the hostfile."""

_LINE = re.compile(r"(?P<host>\S+)\s+slots\s*=\s*(?P<slots>\S+)(?P<rest>.*)")
_NAME = re.compile(r"(?:[\w.-]+@)?[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?")


def read_hostfile(path: str | Path, *, required: bool) -> dict[str, int] | None:
    """Read a hostfile into host -> number of slots.

    None when the file does not exist and is not `required`. Raises `LaunchError` with every bad
    line, its number and the reason.
    """
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        if required:
            raise LaunchError(f"hostfile {path}: no such file") from None
        return None
    except OSError as error:
        raise LaunchError(f"hostfile {path}: {error.strerror}") from error
    return parse_hostfile(text, name=str(path))


def parse_hostfile(text: str, *, name: str = "hostfile") -> dict[str, int]:
    """Parse lines `HOST slots=N`; `#` starts a comment. `name` is for the messages."""
    hosts: dict[str, int] = {}
    lines: dict[str, int] = {}
    faults = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = re.sub(r"(^|\s)#.*", "", line).strip()
        if not words:
            continue
        host, slots, reason = _parse_line(words)
        if not reason and host in hosts:
            reason = f"host {host!r} stands in line {lines[host]} already"
        if reason:
            faults.append(f"line {number}: {line.strip()!r}: {reason}")
        else:
            hosts[host], lines[host] = slots, number
    if not hosts and not faults:
        faults.append("it names no host; expected lines 'HOST slots=N'")
    if faults:
        raise LaunchError(f"hostfile {name}: " + "\n  ".join(["", *faults]).strip())
    return hosts


def _parse_line(words: str) -> tuple[str, int, str]:
    """Host, slots and the fault ('' when there is none)."""
    match = _LINE.fullmatch(words)
    if match is None:
        return "", 0, "expected 'HOST slots=N'"
    host = match["host"]
    if not _is_host(host):
        return host, 0, f"{host!r} is not a host name or address"
    if not match["slots"].isdecimal() or int(match["slots"]) < 1:
        return host, 0, f"slots must be a whole number of at least 1, not {match['slots']!r}"
    rest = match["rest"].strip()
    if rest and not re.fullmatch(r"max[-_]slots\s*=\s*\d+", rest):
        return host, 0, f"unexpected {rest!r} after slots"
    return host, int(match["slots"]), ""


def _is_host(host: str) -> bool:
    if _NAME.fullmatch(host):
        return True
    try:
        ipaddress.ip_address(host.rpartition("@")[2].strip("[]"))
    except ValueError:
        return False
    return True


def all_slots(pool: Mapping[str, int]) -> Slots:
    """Every slot of every host."""
    return {host: list(range(slots)) for host, slots in pool.items()}


def select(
    pool: Mapping[str, Sequence[int]],
    *,
    include: str = "",
    exclude: str = "",
    num_nodes: int = -1,
    num_gpus: int = -1,
) -> Slots:
    """The slots a job uses. Raises `LaunchError` for what the pool does not have."""
    chosen = {host: list(slots) for host, slots in pool.items()}
    if include and exclude:
        raise LaunchError("--include and --exclude: give one of them")
    if (include or exclude) and (num_nodes > 0 or num_gpus > 0):
        raise LaunchError(
            "--num_nodes and --num_gpus choose the first ones: leave them out beside"
            " --include and --exclude"
        )
    if include:
        wanted = parse_filter(include, chosen, option="--include")
        return {host: wanted[host] for host in chosen if host in wanted}
    if exclude:
        unwanted = parse_filter(exclude, chosen, option="--exclude")
        for host, slots in unwanted.items():
            chosen[host] = [slot for slot in chosen[host] if slot not in slots]
        chosen = {host: slots for host, slots in chosen.items() if slots}
        if not chosen:
            raise LaunchError(f"--exclude {exclude}: nothing is left")
        return chosen
    if num_nodes > len(chosen):
        raise LaunchError(f"--num_nodes {num_nodes}: there are only {len(chosen)} hosts")
    if num_nodes > 0:
        chosen = dict(list(chosen.items())[:num_nodes])
    if num_gpus > 0:
        for host, slots in chosen.items():
            if num_gpus > len(slots):
                raise LaunchError(f"--num_gpus {num_gpus}: {host} has only {len(slots)} slots")
            chosen[host] = slots[:num_gpus]
    return chosen


def parse_filter(text: str, pool: Mapping[str, Sequence[int]], *, option: str) -> Slots:
    """Parse `HOST[:SLOT,SLOT-SLOT][@HOST...]` against the hosts there are.

    Host names may hold `@` (user@host) and `:` (IPv6): the longest known host that fits wins.
    """
    found: Slots = {}
    position = 0
    while position <= len(text):
        host = _host_at(text, position, pool, option)
        position += len(host)
        slots = re.match(r":([\d,\s-]+)(?=@|$)", text[position:])
        if slots:
            position += slots.end()
            picked = _slots(slots[1], host, pool[host], option)
        else:
            picked = list(pool[host])
        found[host] = sorted({*found.get(host, ()), *picked})
        position += 1  # the @
    return found


def _host_at(text: str, position: int, pool: Mapping[str, Sequence[int]], option: str) -> str:
    rest = text[position:]
    for host in sorted(pool, key=len, reverse=True):
        after = rest[len(host) :]
        if rest.startswith(host) and re.fullmatch(r"(:[\d,\s-]+)?(@.*)?", after):
            return host
    spec = rest.partition("@")[0]
    unknown = re.sub(r":[^:]*$", "", spec)
    if unknown in pool:
        raise LaunchError(f"{option} {text}: {spec!r}: slots are numbers, as in {unknown}:0,2-3")
    known = ", ".join(pool)
    raise LaunchError(
        f"{option} {text}: no host {unknown!r} among {known}{nearest(unknown, list(pool))}"
    )


def _slots(text: str, host: str, there: Sequence[int], option: str) -> list[int]:
    slots = numbers(text, what=f"{option}: slots of {host}")
    for slot in slots:
        if slot not in there:
            raise LaunchError(f"{option}: {host} has no slot {slot}, only {spans(there)}")
    return slots


def numbers(text: str, *, what: str) -> list[int]:
    """The numbers of a list like `1,3-5,7`."""
    found: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", piece)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise LaunchError(f"{what}: {text!r}: expected a list like 1,3-5,7")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def spans(slots: Sequence[int]) -> str:
    """Numbers as a list of spans, as in `0-3,6`."""
    pieces: list[list[int]] = []
    for slot in sorted(slots):
        if pieces and slot == pieces[-1][-1] + 1:
            pieces[-1] = [pieces[-1][0], slot]
        else:
            pieces.append([slot])
    return ",".join("-".join(map(str, piece)) for piece in pieces)
