"""What `ds_report` says about tensor I/O on this host."""

from __future__ import annotations

import resource

from ds_aio.engine import availability
from ds_aio.gds import gds_unavailable

Row = tuple[str, str, str]


def rows() -> list[Row]:
    """(label, status, reason) for the file engine, each backend, locked memory and GPUDirect."""
    reasons = availability()
    chosen = next(name for name, reason in reasons.items() if not reason)
    passed = "; ".join(f"{name}: {why}" for name, why in reasons.items() if why)
    found: list[Row] = [("file engine", chosen, passed or "the first choice")]
    found += [
        (f"backend {name}", "no" if why else "yes", why or "can be asked for by name")
        for name, why in reasons.items()
    ]
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = limit == resource.RLIM_INFINITY
    text = "no limit" if unlimited else f"RLIMIT_MEMLOCK {limit} bytes, more stays unlocked"
    found.append(("locked memory", "yes" if limit else "no", text))
    why = gds_unavailable()
    found.append(("GPUDirect Storage", "no" if why else "yes", why or "through KvikIO"))
    return found
