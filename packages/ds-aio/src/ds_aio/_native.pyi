from collections.abc import Sequence

class Faults:
    report_alignment: int
    enforce_alignment: int
    refuse_open: bool
    refuse_transfer: bool
    fail_errno: int
    fail_offset: int
    fail_times: int
    short_limit: int

class File:
    def __init__(
        self,
        path: bytes,
        *,
        write: bool,
        create: bool,
        truncate: bool,
        direct: bool,
        faults: Faults,
    ) -> None: ...
    def size(self) -> int: ...
    def sync(self, data_only: bool) -> None: ...
    def truncate(self, length: int) -> None: ...
    def close(self) -> None: ...
    @property
    def direct(self) -> bool: ...
    @property
    def refused(self) -> bool: ...
    @property
    def regular(self) -> bool: ...
    @property
    def device(self) -> int: ...
    @property
    def memory_alignment(self) -> int: ...
    @property
    def offset_alignment(self) -> int: ...
    @property
    def reason(self) -> str: ...

class Request:
    def done(self) -> bool: ...
    def wait(self) -> None: ...
    def outcome(self) -> tuple[int, int, bool, int]: ...

class Engine:
    def __init__(
        self,
        backend: str,
        *,
        block_size: int,
        queue_depth: int,
        single_submit: bool,
        overlap_events: bool,
        num_threads: int,
        faults: Faults,
    ) -> None: ...
    def submit(
        self,
        write: bool,
        file: File,
        ranges: Sequence[tuple[int, int]],
        segments: Sequence[tuple[int, int]],
        keep: object,
        here: bool,
    ) -> Request: ...
    def close(self) -> None: ...

class Buffer:
    def __init__(self, size: int, *, phase: int, lock: bool) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def locked(self) -> bool: ...
    @property
    def lock_error(self) -> int: ...
    def __len__(self) -> int: ...

def probe(backend: str, depth: int) -> int: ...
