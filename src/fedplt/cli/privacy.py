"""The verb privacy: what a run would spend, and the noise that a target needs."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from fedplt.cli.app import Config, Set, out, print_json, verb
from fedplt.errors import ConfigError


@verb()
def privacy(
    config: Config,
    set_: Set = None,
    epsilon: Annotated[
        float | None, typer.Option(min=0, help="Find the noise multiplier for this epsilon.")
    ] = None,
) -> None:
    """Tell which (epsilon, delta) a run with [privacy] would spend, before any training."""
    from fedplt.configuration import load_config
    from fedplt.federation.privacy import noise_multiplier_for, privacy_record, privacy_text

    settings = load_config(config, set_ or [])
    if settings.privacy is None:
        raise ConfigError(
            f"{config} has no [privacy]. Add one with clip and noise_multiplier, such as --set "
            "privacy.clip=1.0 --set privacy.noise_multiplier=1.0 --set server.weights=equal."
        )
    record = privacy_record(settings)
    out.print(privacy_text(record))
    noise = None
    if epsilon is not None:
        noise = math.ceil(1000 * noise_multiplier_for(settings, epsilon)) / 1000
        out.print(f"privacy.noise_multiplier = {noise:g} gives epsilon {epsilon:g} at most.")
    print_json({"privacy": record, "noise_multiplier": noise})
