"""The section ``[server]`` of a run's configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from fedplt.errors import ConfigError
from fedplt.methods import NamedClasses
from fedplt.schema import Section
from fedplt.server import RULES, AggregationRule, AverageSettings, MemorySettings, ServerOptimizer

_CLASSES = NamedClasses(
    key="server.aggregation",
    options_key="server.options",
    base=AggregationRule,
    known=RULES,
    wanted="a subclass of fedplt.server.AggregationRule",
    page="docs/add_rule.md",
    needs=("combine or start",),
)


class ServerConfig(Section):
    """How the server aggregates the updates of a round and changes the model."""

    aggregation: str = "mean"
    """``mean``, ``median``, ``trimmed-mean``, ``clipped-mean`` (``docs/robust.md``), or
    ``package.module:Class`` (``docs/add_rule.md``)."""
    options: dict[str, Any] = {}
    """Options of a rule by import path: the fields of its class."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """For ``trimmed-mean``: fraction of the contributors left out at each end."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """For ``clipped-mean``: largest root mean square of an update in a layer, as a multiple of the
    median over the round's clients."""
    max_rms: Annotated[float, Field(gt=0)] | None = None
    """An update with a larger root mean square in a layer is refused; default: no limit."""
    max_medians: Annotated[float, Field(ge=1)] | None = None
    """An update is refused if its root mean square in a layer exceeds this multiple of the median
    over the round's clients; default: no limit."""
    weights: Literal["examples", "equal"] = "examples"
    """Weight updates by their client's number of examples, or all equally."""
    max_examples: Annotated[int, Field(ge=1)] | None = None
    """An update counts as at most this many examples; default: no limit."""
    min_contributors: Annotated[int, Field(ge=1)] = 1
    """A sub-layer that fewer clients trained in a round keeps its values."""
    optimizer: Literal["none", "momentum", "adam", "yogi"] = "none"
    """``none`` adds the mean update."""
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """Learning rate; ``none`` ignores it. Adam and Yogi need a smaller one, such as 0.01."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the momentum."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the squares (Adam, Yogi)."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-3
    step_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """In round t = 0, 1, ... the server's step is multiplied by ``step_decay ** t``."""
    memory: MemorySettings | None = None
    """Remember every client's last update of every block (``docs/beyond.md``)."""
    average: AverageSettings | None = None
    """Average the models of past rounds; the average is evaluated beside the last model."""
    min_clients: Annotated[int, Field(ge=0)] = 0
    """A round with fewer updates than this does not count and is tried again."""
    attempts: Annotated[int, Field(ge=1)] = 3
    """How often a round is tried before the run stops (it can be resumed)."""

    def refuse_conflicts(self) -> None:
        because, is_built_in = f"aggregation = {self.aggregation!r}", ":" not in self.aggregation
        if is_built_in:
            _CLASSES.find(self.aggregation)  # refuses an unknown name
        for key in sorted(_OPTIONS):
            names = [name for name in RULES if key in _CLASSES.options(name)]
            if self.aggregation not in names:
                self.refuse_unused([key], because, f"or set aggregation = {names[-1]!r}")
        for key in self.options.keys() & self._own_options():
            problem = f"{key} is a key of [server] itself; write it there"
            raise ConfigError(problem, key=f"options.{key}")
        if is_built_in and self.rule.counts_clients:
            instead = "or set aggregation = 'clipped-mean'"
            self.refuse_unused(["weights", "max_examples"], because, instead)
        if self.weights == "equal":
            self.refuse_unused(["max_examples"], "weights = 'equal'", "or weigh by examples")
        unused = {
            "none": ("learning_rate", "beta1", "beta2", "epsilon"),
            "momentum": ("beta2", "epsilon"),
        }.get(self.optimizer, ())
        instead = "or choose another optimizer, such as 'adam'"
        self.refuse_unused(unused, f"optimizer = {self.optimizer!r}", instead)
        if self.memory is not None and self.aggregation not in ("mean", "clipped-mean"):
            raise ConfigError(
                f"aggregation = {self.aggregation!r} does not allow it: remembered updates are "
                "added with weights by age. Leave it out, or set aggregation = 'mean' or "
                "'clipped-mean'",
                key="memory",
            )

    @property
    def rule(self) -> AggregationRule:
        """The rule object; imports what is named by import path."""
        own = {key: getattr(self, key) for key in self._own_options()}
        return _CLASSES.make(self.aggregation, {**own, **self.options})

    def _own_options(self) -> set[str]:
        """Options of the rule that are keys of this section; all others are in ``options``."""
        built_in = _CLASSES.options(self.aggregation) if self.aggregation in RULES else set()
        return {"min_contributors"} | _OPTIONS & built_in

    def build(self) -> ServerOptimizer:
        return ServerOptimizer(
            self.optimizer, self.learning_rate, self.beta1, self.beta2, self.epsilon
        )


_OPTIONS = {"trim", "clip"}
"""Options of built-in rules that are keys of the section itself."""
