"""Everything fedplt raises on purpose.

    FedpltError
    ├── ConfigError    a run configuration is wrong; names the key
    ├── CutError       a model cannot be cut into layers and sub-layers
    │   ├── ExampleError   no example input is known, or the model does not take it
    │   └── GradientError  a backward pass needs gradients that partial training does not compute
    ├── PlanError      ratios or allocations that no plan can satisfy
    ├── SamplingError  update norms, ratios or a budget that client sampling cannot use
    ├── FleetError     devices that cannot be read, or no plan for them
    ├── DataError      data is missing, damaged, or cannot be split as configured
    ├── UpdateError    a client's update does not fit what the client was assigned
    └── RunError       a run folder or a running engine is in the wrong state
        ├── DivergedError  every client's update was refused, such as for NaN
        └── DamagedError   a file of a run is not what fedplt wrote

Every message names the given value, the allowed ones and what to do. The command line prints
the message and exits with code 2; a traceback always means a bug in fedplt.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedpltError(Exception):
    """Base of all errors that are about the user's input or environment.

    ``key`` is the setting or argument that the error is about, and ``also`` are other settings
    that conflict with it. The caller that has the file adds its ``place``: file and line.

    >>> print(ConfigError("must be at least 1, but it is 0.", key="rounds"))
    rounds: must be at least 1, but it is 0.
    """

    def __init__(
        self, message: str = "", *, key: str = "", also: Iterable[str] = (), place: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.key, self.also, self.place = message, key, tuple(also), place

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        return f"{key}{self.message}" + (f" ({self.place})" if self.place else "")


class ConfigError(FedpltError, ValueError):
    """A run configuration is wrong."""


class CutError(FedpltError, ValueError):
    """A model cannot be cut into layers and sub-layers."""


class ExampleError(CutError):
    """No example input of a model is known, or the model does not take it."""


class GradientError(CutError, RuntimeError):
    """A backward pass needs gradients that partial training does not compute."""


class PlanError(FedpltError, ValueError):
    """Ratios or allocations that no plan can satisfy."""


class SamplingError(FedpltError, ValueError):
    """Update norms, ratios or a budget that client sampling cannot use."""


class FleetError(FedpltError, ValueError):
    """Devices are described wrongly, or cannot be planned for."""


class DataError(FedpltError, ValueError):
    """Data is missing, damaged, or cannot be split as configured."""


class UpdateError(FedpltError, ValueError):
    """A client's update does not fit what the client was assigned."""


class RunError(FedpltError, RuntimeError):
    """A run folder or a running engine is in the wrong state."""


class TooFewClientsError(RunError):
    """Fewer clients than a round needs gave a valid update."""


class DivergedError(RunError):
    """Every client's update was refused; the same run would diverge again."""


class DamagedError(RunError):
    """A file of a run is not what fedplt wrote: damaged, edited, or of another run."""


class UntrainedWarning(UserWarning):
    """A part of the model that no client trains."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A sentence that names the most similar known word (or two), or lists all known words.

    >>> did_you_mean("fedptl", ["fedplt", "fedpmt", "heterofl"])
    "Did you mean 'fedplt'?"
    >>> did_you_mean("target_seconds", ["deadline_seconds", "late_after_seconds"])
    "Did you mean 'late_after_seconds' or 'deadline_seconds'?"
    >>> did_you_mean("zzz", ["iid", "dirichlet"])
    'Known: dirichlet, iid.'
    >>> did_you_mean("IID", ["iid", "dirichlet"])
    "Did you mean 'iid'?"
    """
    known = sorted(known)
    by_lower_case = {name.lower(): name for name in known}
    word = given.lower()
    near = [name for name in by_lower_case if sorted(name) == sorted(word)]  # swapped letters
    near = near or difflib.get_close_matches(word, by_lower_case, n=1, cutoff=0.8)
    near = near or difflib.get_close_matches(word, by_lower_case, n=2)
    if not near:
        return f"Known: {', '.join(known)}."
    return f"Did you mean {' or '.join(repr(by_lower_case[name]) for name in near[:2])}?"
