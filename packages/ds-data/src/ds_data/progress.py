"""A progress bar for long work; needs the extra `ds-data[progress]`."""

from __future__ import annotations

from collections.abc import Callable

from ds_data.errors import RuleError


def progress_bar(label: str = "analysing") -> Callable[[int, int], None]:
    """A function of (done, total) that draws a bar on standard error."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise RuleError("a progress bar needs tqdm: pip install ds-data[progress]") from error
    bar = tqdm(total=None, desc=label, unit=" samples")

    def update(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return update
