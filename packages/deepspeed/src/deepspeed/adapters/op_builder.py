"""The face all op builders share: nothing is compiled at run time, so every answer is at hand."""

from __future__ import annotations

from typing import Any, ClassVar


class OpBuilder:
    """A named operation. Programs subclass it to register their own.

    Attributes:
        NAME: the operation's name in reports.
        BUILD_VAR: environment variable that used to ask for a build; nothing reads it now.
        PACKAGE: where the operation lives.
    """

    NAME: ClassVar[str] = "op"
    BUILD_VAR: ClassVar[str] = "DS_BUILD_OP"
    PACKAGE: ClassVar[str] = "deepspeed"

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.NAME
        self.error_log: str | None = None

    @property
    def builder_available(self) -> bool:
        """True: nothing is compiled at run time."""
        return True

    def absolute_name(self) -> str:
        return f"{self.PACKAGE}.{self.NAME}"

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether `load` gives a working operation on this machine."""
        return True

    def load(self, verbose: bool = False) -> Any:
        """What holds the operation."""
        raise NotImplementedError(f"{type(self).__name__} defines no load(): give it one")

    def jit_load(self, verbose: bool = True) -> Any:
        """As `load`: nothing is compiled at run time."""
        return self.load(verbose)

    def sources(self) -> list[str]:
        return []

    def include_paths(self) -> list[str]:
        return []

    def cxx_args(self) -> list[str]:
        return []

    def extra_ldflags(self) -> list[str]:
        return []

    def report(self) -> str:
        """How the operation runs here, in one line."""
        return "ready"
