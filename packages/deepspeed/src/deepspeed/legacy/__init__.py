"""The import paths that existing programs use, served from one table.

Each file beside this one holds a part of the table, `NAMES`:

    legacy module -> {name: "module:attribute"}     a module whose names come from elsewhere
    legacy module -> "module"                       another name of a real module

A value that begins with `!` is a name we do not offer: it can be imported, and using it raises the
text behind the `!`, which says what it would need. Nothing is imported before a name is used.
"""

from deepspeed.legacy.finder import (
    LegacyFinder,
    NotOffered,
    fallback,
    install,
    names_of,
    resolve,
    table,
)

__all__ = ["LegacyFinder", "NotOffered", "fallback", "install", "names_of", "resolve", "table"]
