"""Keeps a set of processes together: all run, or none does.

torch's elastic process manager is not used here: it needs torch imported in the launcher (a
second of start-up, and one more process that may hold a device), it signals only the ranks
themselves, so that their data-loader workers survive, and nothing ends the ranks when the
launcher is killed. This one adopts every descendant (Linux), so that it can end all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from deepspeed.launcher import tree
from deepspeed.launcher.output import Sink, Source, Tail, last_word, without_prefix

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_IDLE = 0.1  # seconds after which an unfinished line is shown
_LAST_LINES = "Its last lines:"
_REFUSAL = re.compile(r"unrecognized arguments?: .*--local[_-]rank")
_REFUSED_ARGUMENT = (
    "the launcher adds --local_rank=N to the arguments of a script; let yours accept "
    "it, or start it with --no_local_rank"
)
_AFTER_DEATH = 3.0  # seconds between SIGTERM and SIGKILL once a rank has died
_AFTER_SIGNAL = 30.0  # the same once somebody asked the job to stop: time for a checkpoint


@dataclass(frozen=True)
class Command:
    """One process to keep: `environ` is added to ours, `cores` and `log` are optional."""

    label: str
    argv: Sequence[str]
    environ: dict[str, str] = field(default_factory=dict)
    cores: Sequence[int] = ()
    log: str | None = None


@dataclass
class _Kept:
    command: Command
    process: subprocess.Popen[bytes]
    tail: Tail
    code: int | None = None

    @property
    def words(self) -> str:
        if self.code is not None and self.code < 0:
            return f"was killed by {_signal_name(-self.code)}"
        return f"exited with code {self.code}"


class Keeper:
    """Starts commands, passes on their output, ends all when one dies.

    Args:
        commands: what to run.
        parent_fd: read end of a pipe that our parent holds open: its end of file means that the
            parent was killed, and stops everything.
        follow_output: stop everything once the reader of our standard output has gone (the
            connection to the machine that started us).
    """

    def __init__(
        self,
        commands: Sequence[Command],
        *,
        parent_fd: int | None = None,
        follow_output: bool = False,
    ) -> None:
        self._commands = commands
        self._parent_fd = parent_fd
        self._follow_output = follow_output
        self._kept: list[_Kept] = []
        self._sources: dict[int, Source] = {}
        self._out = Sink(1)
        self._err = self._out if _same_file(1, 2) else Sink(2)
        self._asked: int | None = None  # the signal that asked us to stop
        self._failed: list[_Kept] = []
        self._deadline: float | None = None
        self._started = time.monotonic()

    def run(self) -> int:
        """Run all commands to their end and return the exit code of the whole."""
        tree.adopt_orphans()
        with _signals_as_bytes() as signals:
            try:
                for command in self._commands:
                    self._start(command)
                while any(kept.code is None for kept in self._kept):
                    self._turn(signals)
            except OSError as error:
                self._kill()
                self._drain()
                _say(f"cannot start {command.label}: {command.argv[0]}: {error.strerror}")
                return 127
            if self._failed or self._asked:
                self._kill()
            self._drain()
        return self._verdict()

    def _start(self, command: Command) -> None:
        tail = Tail()
        write_ends: list[int] = []
        if command.log is not None:
            out = err = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            write_ends.append(out)
        else:
            read, out = os.pipe()
            self._sources[read] = Source(read, self._out, tail)
            err = out
            write_ends.append(out)
            if self._err is not self._out:
                read, err = os.pipe()
                self._sources[read] = Source(read, self._err, tail)
                write_ends.append(err)
        try:
            process = subprocess.Popen(
                command.argv,
                env=os.environ | command.environ,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=tree.before_exec(command.cores),
            )
        finally:
            for end in write_ends:
                os.close(end)
        self._kept.append(_Kept(command, process, tail))

    def _turn(self, signals: int) -> None:
        """Wait for whatever comes next, and act on it."""
        events = self._poll(signals)
        for fd, event in events.items():
            if fd == signals:
                for number in os.read(signals, 64):
                    self._on_signal(number)
            elif fd == self._parent_fd:
                self._stop(signal.SIGTERM, after=0)
                self._parent_fd = None
                self._asked = self._asked or signal.SIGTERM
            elif fd in self._sources:
                source = self._sources[fd]
                if source.read_some() == 0:
                    source.flush()
                    os.close(fd)
                    del self._sources[fd]
            else:
                self._on_sink(fd, event)
        if not events:
            for source in self._sources.values():
                source.flush()
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._deadline = None
            self._kill()
        self._reap()

    def _poll(self, signals: int) -> dict[int, int]:
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        if self._parent_fd is not None:
            poll.register(self._parent_fd, select.POLLIN)
        for fd, source in self._sources.items():
            if not source.sink.full:
                poll.register(fd, select.POLLIN)
        for sink in {self._out, self._err}:
            if sink.waiting:
                poll.register(sink.fd, select.POLLOUT)
            elif sink is self._out and self._follow_output and not sink.broken:
                poll.register(sink.fd, 0)  # errors alone
        return dict(poll.poll(1000 * _IDLE))

    def _on_sink(self, fd: int, event: int) -> None:
        sink = self._out if fd == self._out.fd else self._err
        if event & select.POLLOUT:
            sink.write_some()
        elif event & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            sink.broken = True
        if sink.broken and self._asked is None:
            self._asked = signal.SIGPIPE
            self._stop(signal.SIGTERM, after=_AFTER_DEATH)

    def _on_signal(self, number: int) -> None:
        if number in _STOPPING:
            again = self._asked is not None
            self._asked = self._asked or number
            self._stop(number, after=0 if again else _AFTER_SIGNAL)
        elif number in _PASSED_ON:
            for kept in self._running():
                tree.send(kept.process.pid, number)

    def _reap(self) -> None:
        by_pid = {kept.process.pid: kept for kept in self._kept if kept.code is None}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                kept = by_pid.get(ended[0])  # else an orphan we adopted
                if kept is not None:
                    kept.code = kept.process.returncode = os.waitstatus_to_exitcode(ended[1])
                    if kept.code != 0:
                        self._on_death(kept)

    def _on_death(self, kept: _Kept) -> None:
        if self._asked is None and not self._failed:
            self._stop(signal.SIGTERM, after=_AFTER_DEATH)
        if self._asked is None:
            self._failed.append(kept)

    def _stop(self, number: int, *, after: float) -> None:
        """Send `number` to what still runs; SIGKILL follows `after` seconds later.

        Like a terminal, SIGINT reaches a rank's whole group. SIGTERM from outside goes to the rank
        alone: one that saves a last checkpoint still needs its data-loader workers.
        """
        group = number == signal.SIGINT or self._asked is None
        for kept in self._running():
            tree.send(kept.process.pid, number, group=group)
        self._deadline = min(self._deadline or float("inf"), time.monotonic() + after)

    def _kill(self) -> None:
        """End everything below us; where there is no /proc, the ranks' own groups."""
        for kept in self._running():
            tree.send(kept.process.pid, signal.SIGKILL, group=True)
        tree.kill_descendants(os.getpid())

    def _running(self) -> Iterator[_Kept]:
        return (kept for kept in self._kept if kept.code is None)

    def _drain(self) -> None:
        for source in self._sources.values():
            source.drain()
        patience = _AFTER_DEATH if self._asked else float("inf")
        deadline = time.monotonic() + patience
        for sink in (self._out, self._err):
            while sink.waiting and time.monotonic() < deadline:
                if sink.ready(_IDLE):
                    sink.write_some()

    def _verdict(self) -> int:
        if self._asked is not None:
            if all(kept.code == 0 for kept in self._kept):
                return 0
            return 128 + self._asked
        if not self._failed:
            return 0
        first = self._failed[0]
        code = first.code or 0
        tail = Tail.of_file(Path(first.command.log)) if first.command.log else first.tail
        words = _own_words(tail)
        why = last_word(words)
        if not self._err.tail.ends_with(why):
            seconds = time.monotonic() - self._started
            _say(
                f"{first.command.label} (pid {first.process.pid}) {first.words} after"
                f" {seconds:.1f} s" + self._fate_of_the_others() + f". {_LAST_LINES}",
                *(f"  | {line}" for line in words or ["(it wrote nothing)"]),
            )
        if any(map(_REFUSAL.search, words)):
            _say(_REFUSED_ARGUMENT)
        between = "; its last line: " if code < 0 else ": "
        _say(f"{first.command.label} {first.words}" + (between + without_prefix(why)) * bool(why))
        return 128 - code if code < 0 else code

    def _fate_of_the_others(self) -> str:
        others = len(self._kept) - 1
        return f"; {others} other(s) stopped with it" if others else ""


def run_commands(
    commands: Sequence[Command], *, parent_fd: int | None = None, follow_output: bool = False
) -> int:
    """Run `commands` as one job in this process, which must have no other children."""
    return Keeper(commands, parent_fd=parent_fd, follow_output=follow_output).run()


def pack(commands: Sequence[Command]) -> bytes:
    """The commands as `main` reads them from its pipe."""
    return json.dumps([asdict(command) for command in commands]).encode()


def main() -> int:
    """Entry of `python -m deepspeed.launcher.keeper FD PARENT_FD`: commands come from FD."""
    commands_fd, parent_fd = map(int, sys.argv[1:3])
    with open(commands_fd, "rb") as file:
        commands = [Command(**entry) for entry in json.load(file)]
    return run_commands(commands, parent_fd=parent_fd)


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[int]:
    """The read end of a pipe on which each signal arrives as one byte."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (*_STOPPING, *_PASSED_ON, signal.SIGCHLD):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_STOPPING, *_PASSED_ON))
    try:
        yield read
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read)
        os.close(write)


def _own_words(tail: Tail) -> list[str]:
    """The last lines, without what another machine's launcher quotes in them once more."""
    lines = tail.lines()
    quoted = [place for place, line in enumerate(lines) if line.endswith(_LAST_LINES)]
    return lines[quoted[-1] :] if quoted else lines


def _same_file(first: int, second: int) -> bool:
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _say(*lines: str) -> None:
    lines = (f"deepspeed: {lines[0]}", *lines[1:])
    with contextlib.suppress(OSError):
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
