"""Numbers as people read them."""

from __future__ import annotations

_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "u"))
_FACTORS = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1.0, "m": 1e-3, "u": 1e-6}


def number_to_string(num: float, units: str | None = None, precision: int = 2) -> str:
    """`1234567` -> `"1.23 M"`; `units` (`"T"`, `"G"`, `"M"`, `"K"`, `""`) fixes the scale."""
    if units is None:
        units = next((unit for size, unit in _LARGE if abs(num) >= size), None)
        if units is None:
            units = next((unit for size, unit in _SMALL if abs(num) >= size), "")
    value = round(num / _FACTORS[units], precision)
    text = f"{value:g}" if value == int(value) and abs(value) < 1e6 else f"{value:.{precision}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {units}"


def flops_to_string(flops: float, units: str | None = None, precision: int = 2) -> str:
    """Floating-point operations a second: `"1.5 TFLOPS"`."""
    return f"{number_to_string(flops, units, precision)}FLOPS"


def macs_to_string(macs: float, units: str | None = None, precision: int = 2) -> str:
    """Multiply-accumulates: `"3.2 GMACs"`."""
    return f"{number_to_string(macs, units, precision)}MACs"


def params_to_string(params_num: float, units: str | None = None, precision: int = 2) -> str:
    """Parameters: `"61.1 M"`."""
    return number_to_string(params_num, units, precision).rstrip()


def duration_to_string(duration: float, units: str | None = None, precision: int = 2) -> str:
    """Seconds: `"76.7 ms"`."""
    if units is None:
        units = "" if duration >= 1 else ("m" if duration >= 1e-3 or duration == 0 else "u")
    return f"{number_to_string(duration, units.removesuffix('s'), precision)}s"


def bytes_to_string(b: float, units: str | None = None, precision: int = 2) -> str:
    """Bytes in decimal units: `"1.34 GB"`."""
    return f"{number_to_string(b, units, precision)}B"


def percent(part: float, whole: float) -> str:
    """`part` of `whole` as `"12.3%"`; 0 when there is no whole."""
    return f"{round(100 * part / whole, 2) if whole else 0:g}%"
