"""A table for terminals that leaves out columns where they do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_FRAME = 3
"""What a column takes beside its cells: a border, and a space on either side."""
_NAMES = 24
"""Names are shortened to this (or two fifths of the width) before a column goes."""


@dataclass(frozen=True)
class FittedTable:
    """Renders as a `rich.table.Table` that no value is broken or cut in.

    Attributes:
        title, caption: markup.
        columns: headings; the first column, of names, is on the left and may be shortened.
        rows: cells, as markup; a row may have only the first.
        dispensable: columns to leave out where the console is too narrow, the first one first.
            Those without a value in any row go before them.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    dispensable: Sequence[str]
    caption: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(options.max_width)

    def kept(self, width: int) -> list[int]:
        """The columns shown in `width` characters."""
        widths, kept = self._widths(), list(range(len(self.columns)))
        widths[0] = min(widths[0], max(_NAMES, width * 2 // 5))
        for column in self._order():
            if sum(widths[i] + _FRAME for i in kept) + 1 <= width:
                break
            kept.remove(column)
        return kept

    def _order(self) -> list[int]:
        full = [row for row in self.rows if len(row) > 1]
        empty = [i for i in range(1, len(self.columns)) if all(row[i] == "-" for row in full)]
        first = [i for i in map(self.columns.index, self.dispensable) if i not in empty]
        return [*empty, *first]

    def _widths(self) -> list[int]:
        """Characters of the longest cell; a row of one cell does not count."""
        full = [self.columns, *(row for row in self.rows if len(row) > 1)]
        return [max(map(_width, cells)) for cells in zip(*full, strict=True)]

    def _table(self, width: int) -> Table:
        kept, widths = self.kept(width), self._widths()
        left = width - 1 - _FRAME - sum(widths[i] + _FRAME for i in kept[1:])
        names = max(_width(row[0]) for row in self.rows)
        table = Table(title=self.title, caption=self.caption, caption_justify="left")
        table.add_column(self.columns[0], no_wrap=True, width=max(1, min(names, left)))
        for column in kept[1:]:
            table.add_column(
                self.columns[column], justify="right", no_wrap=True, width=widths[column]
            )
        for row in self.rows:
            table.add_row(*(row[i] for i in kept if i < len(row)))
        return table


def _width(cell: str) -> int:
    return Text.from_markup(cell).cell_len
