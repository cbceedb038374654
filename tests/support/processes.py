"""Processes of their own without the seconds that a new interpreter takes to import torch.

They are forked from the process of the tests, and then start over as a new interpreter would: own
standard streams, arguments, signal handlers and warnings. That ``python -m`` works as well is
tested where processes are started as users start them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import IO, NoReturn

_lock = threading.Lock()


class Forked:
    """As much of ``subprocess.Popen`` as is used, for a function instead of a program."""

    def __init__(
        self,
        main: Callable[[], object],
        arguments: Sequence[object] = (),
        *,
        stdout: IO | None = None,
        stderr: IO,
        start_new_session: bool = False,
    ) -> None:
        """Without ``stdout``, what the process writes there can be read from ``self.stdout``."""
        # Else each process would import it on its own, for its first optimizer: two seconds.
        importlib.import_module("torch._dynamo")
        self.returncode: int | None = None
        with _lock, warnings.catch_warnings():  # no other process inherits an end of our pipe
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            ours, theirs = (None, stdout.fileno()) if stdout else os.pipe()
            self.pid = os.fork()
            if not self.pid:
                given = [str(argument) for argument in arguments]
                _become(main, given, theirs, stderr.fileno(), start_new_session)
            if ours is not None:
                os.close(theirs)
        self.stdout = None if ours is None else open(ours)  # noqa: PTH123, SIM115

    def poll(self) -> int | None:
        if self.returncode is None:
            self._note(*os.waitpid(self.pid, os.WNOHANG))
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self._note(*os.waitpid(self.pid, 0))
        assert self.returncode is not None
        return self.returncode

    def _note(self, pid: int, status: int) -> None:
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        if self.stdout:
            self.stdout.close()


def _become(
    main: Callable[[], object], arguments: list[str], out: int, err: int, new_session: bool
) -> NoReturn:
    """In the child: run ``main`` as if this were a new interpreter, and never return."""
    code = 1
    _lock.release()  # which this thread holds; the new process may fork, too
    try:
        if new_session:
            os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, closefd=False)  # noqa: SIM115
            for number, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", category)
        sys.argv = ["forked", *arguments]
        try:
            result = main()
            code = result if isinstance(result, int) else 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
