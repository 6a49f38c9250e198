from collections.abc import Sequence

_Row = tuple[int, int, int, int, int, int, int, int, int, int]

class Ticket:
    def wait(self) -> None: ...
    def done(self) -> bool: ...

class Queue:
    def __init__(self) -> None: ...

def available_levels() -> list[str]: ...
def to_huge_pages(address: int, bytes: int) -> int: ...
def adam(
    rows: Sequence[_Row],
    scalars: Sequence[float],
    level: str,
    threads: int,
    queue: Queue | None = None,
) -> Ticket | None: ...

adagrad = adam
lion = adam
sgd = adam
plain_sgd = adam
bare2 = adam
bare1 = adam

def lamb(
    rows: Sequence[_Row], scalars: Sequence[float], level: str, threads: int
) -> list[float]: ...
