"""``[messages]``, and where it or ``server.memory`` does not fit other sections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedplt.errors import ConfigError
from fedplt.planning import DIFFERENCES, Encoding
from fedplt.schema import Section

if TYPE_CHECKING:
    from fedplt.configuration.config import RunConfig


class MessagesConfig(Section):
    """How models and updates are sent (``docs/beyond.md``)."""

    up: Encoding = "float32"
    """Updates: ``float32``, ``float16``, or ``int8``, ``int4``, ``int2`` in blocks of 128 values
    with a scale; what an upload loses is added to the client's next one."""
    down: Encoding = "float32"
    """The model: ``float32``, ``float16`` or ``int8``; ``int4`` and ``int2`` send differences to
    what the clients of the last round have."""

    @property
    def need_local_state(self) -> bool:
        """Whether clients keep something from one round to the next."""
        return self.up != "float32" or self.down in DIFFERENCES


def refuse_memory(config: RunConfig) -> None:
    """Refuse a memory of updates or encoded messages that do not fit privacy or sampling."""
    server, up, sampling = config.server, config.messages.up, config.sampling
    remembers, private = server.memory is not None, config.privacy is not None
    weighs = sampling.by_norm or sampling.estimator_used == "unbiased"
    for key, is_wrong, reason in (
        ("server.max_medians", private and server.max_medians is not None,
         "[privacy] does not allow it: whether one client's update counts would depend on the "
         "others'. Leave it out: updates are clipped anyway."),
        ("server.memory", private and remembers,
         "[privacy] does not allow it: an update that is added again in later rounds changes "
         "more than the noise covers. Leave it out."),
        ("server.memory", remembers and weighs,
         f"sampling.name = {sampling.name!r} with the estimator {sampling.estimator_used!r} "
         "does not allow it: its weights hold for the clients of one round. Sample with "
         "'uniform' or 'all', or leave it out."),
        ("messages.up", private and up != "float32",
         f"it is {up!r}, which [privacy] does not allow: what an upload loses is added to the "
         "next one, and the noise does not cover it. Set 'float32'."),
        ("messages.up", up != "float32" and sampling.by_norm and config.engine.name == "flower",
         f"it is {up!r}: from a rounded upload the server cannot check the norm by which "
         f"sampling.name = {sampling.name!r} chose the client. Set 'float32', or sample with "
         "'uniform' or 'all'."),
    ):  # fmt: skip
        if is_wrong:
            raise ConfigError(reason, key=key)
