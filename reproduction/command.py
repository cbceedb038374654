"""The command ``python -m reproduction``: run the paper's experiments and rebuild their tables."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedplt.cli.app import err, out, print_json, status, verb
from fedplt.cli.prepare import fetch_progress
from fedplt.errors import ConfigError, did_you_mean
from fedplt.fleet import available_cores
from fedplt.report.page import write_page
from fedplt.text import counted, duration_text, plain, table
from fedplt_compare.cli import parse_seeds
from fedplt_compare.progress import comparison_progress
from reproduction.catalog import EXPERIMENTS, find_blocks
from reproduction.claims import claims_tables
from reproduction.figures import write_figures
from reproduction.pages import Page, experiment_content, page_of, write_claims, write_tables
from reproduction.runner import Place, counts, record, reproduce, seconds_left
from reproduction.settings import Block
from reproduction.tables import Results, load_results
from reproduction.theory.command import theory

QUICK_ROUNDS, QUICK_SEEDS, QUICK_PAIR = 30, "1,2", "fashion-fcn"

app = typer.Typer(
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    help="Experiments, claims and theory of the FedPLT paper. No command: list the experiments.",
)
Pair = Annotated[
    str | None, typer.Option(help="fashion-fcn, cifar-fcn or cifar-resnet (default: all).")
]
Methods = Annotated[
    str | None, typer.Option(help="Comma-separated contestants, such as fedavg,fedplt.")
]
Seeds = Annotated[str, typer.Option(help="Comma-separated.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Default: the paper's.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder of the runs (default: runs/reproduce).")
]
ResultsFolder = Annotated[
    Path | None,
    typer.Option("--results", help="Folder of tables and figures (default: OUT/results)."),
]


@app.callback(invoke_without_command=True)
def _main(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_experiments()


@verb(app, "list", examples=False)
def list_experiments(
    seeds: Seeds = "1,2,3",
    rounds: Rounds = None,
    out_folder: Out = None,
    results: ResultsFolder = None,
) -> None:
    """List the experiments, what is done, and the time left."""
    _list(_place(out_folder, results), _seeds(seeds), rounds)


def _place(out_folder: Path | None, results: Path | None, quick: bool = False) -> Place:
    folder = out_folder or Path("runs") / ("reproduce-quick" if quick else "reproduce")
    return Place(folder, results or folder / "results")


def _command(experiment: str) -> Callable[..., None]:
    def run_experiment(
        pair: Pair = None,
        methods: Methods = None,
        seeds: Annotated[str | None, typer.Option(help="Comma-separated (default: 1,2,3).")] = None,
        rounds: Rounds = None,
        quick: Annotated[
            bool,
            typer.Option("--quick", help="30 rounds, two seeds, fashion-fcn, a separate folder."),
        ] = False,
        out_folder: Out = None,
        results: ResultsFolder = None,
        processes: Annotated[
            int | None, typer.Option(help="Runs at a time (default: one per core).", min=1)
        ] = None,
        train: Annotated[
            bool, typer.Option("--train/--no-train", help="--no-train: only record finished runs.")
        ] = True,
    ) -> None:
        place = _place(out_folder, results, quick)
        numbers = _seeds(seeds or (QUICK_SEEDS if quick else "1,2,3"))
        length = rounds or (QUICK_ROUNDS if quick else None)
        blocks = find_blocks(experiment, pair, _names(methods))
        if quick and pair is None:
            blocks = [block for block in blocks if block.pair == QUICK_PAIR] or blocks[:1]
        problems = 0
        for block in blocks:
            problems += (
                _run(block, place, numbers, length, processes) if train else _record(block, place)
            )
        files = [str(place.runs_file(block)) for block in blocks]
        print_json({"runs": files, "problems": problems})
        if problems:
            raise typer.Exit(1)

    title = EXPERIMENTS[experiment].title
    run_experiment.__doc__ = (
        f"{title[0].upper()}{title[1:]} (the same command continues it; more seeds or rounds add)"
    )
    return run_experiment


for _name in EXPERIMENTS:
    verb(app, _name, examples=False)(_command(_name))


@verb(app, examples=False)
def tables(
    experiment: Annotated[str | None, typer.Argument(help="Only this experiment.")] = None,
    pair: Pair = None,
    results: Annotated[Path, typer.Option(help="Folder with the recorded runs.")] = Path("results"),
    page: Annotated[
        Path | None, typer.Option(help="Write the claims into this Markdown page.")
    ] = None,
) -> None:
    """Rebuild tables, figures and claims from recorded runs; nothing is trained."""
    _rebuild(results, page, experiment, pair)


verb(app, examples=False)(theory)


@verb(app, examples=False)
def beyond(
    pair: Annotated[
        str | None,
        typer.Option(help="fashion-fcn, cifar-fcn, cifar-cnn or news-minilm (default: all)."),
    ] = None,
    methods: Methods = None,
    out_folder: Out = None,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="--no-train: only write the page.")
    ] = True,
) -> None:
    """Rotation, memory, averages and small messages: run the study of docs/beyond.md (hours)."""
    # Takes seconds to import.
    from reproduction.beyond import run_study  # noqa: PLC0415
    from reproduction.beyond_page import ALL_STUDIES, write_page  # noqa: PLC0415

    if pair is not None and pair not in ALL_STUDIES:
        raise ConfigError(f"--pair {pair}: {did_you_mean(pair, ALL_STUDIES)}")
    for study in (ALL_STUDIES[pair],) if pair else ALL_STUDIES.values():
        names = _names(methods) or []
        for name in names:
            if name not in study.contestants:
                raise ConfigError(f"--methods {name}: {did_you_mean(name, study.contestants)}")
        if train:
            out.print(f"{study.title}: this takes hours; the same command continues it.")
            run_study(study, out_folder or Path("runs") / "reproduce", names)
    write_page()


def _names(methods: str | None) -> list[str] | None:
    return [n for name in methods.split(",") if (n := name.strip())] if methods else None


def _seeds(text: str) -> list[int]:
    seeds = list(dict.fromkeys(parse_seeds(text)))
    if min(seeds) < 0:
        raise ConfigError(f"--seeds {text}: seeds are 0 or more.")
    return seeds


def _record(block: Block, place: Place) -> int:

    if not any(record(block, place).runs.values()):
        err.print(f"{block.experiment}, {block.pair}: no run has ended yet.")
        return 1
    _show(block, place)
    return 0


def _run(
    block: Block, place: Place, seeds: list[int], rounds: int | None, processes: int | None
) -> int:

    out.print(f"{block.experiment}, {block.setting.title}: {_state(block, place, seeds, rounds)}")
    try:
        with comparison_progress(status) as watch:
            failed = reproduce(
                block, place, seeds, rounds or block.setting.rounds,
                processes=processes, watch=watch, fetching=lambda: fetch_progress(status),
            )  # fmt: skip
    except KeyboardInterrupt:
        err.print("stopped and saved. The same command continues it.")
        raise typer.Exit(130) from None
    _show(block, place)
    for (name, seed), why in failed.items():
        err.print(f"{name}, seed {seed}: {why}", soft_wrap=True)
    return len(failed)


def _show(block: Block, place: Place) -> None:
    """Write and print the tables of a recorded block."""

    results = load_results(place.results)
    if (block.experiment, block.pair) not in results:
        return
    page = _write(place.results, results, block.experiment, block.pair)
    for shown in page.tables:
        out.print(f"\n{plain(shown)}", soft_wrap=True)
    out.print(f"\n{place.runs_file(block).parent}: runs.json, table.md, table.tex, figures")
    file = place.out / f"{block.experiment}-{block.pair}.html"
    out.print(f"report: {write_page(file, experiment_content(page))}", soft_wrap=True)


def _write(folder: Path, results: Results, experiment: str, pair: str) -> Page:
    """Write the tables and figures of one block."""

    page = page_of(results, experiment, pair)
    path = folder / experiment / pair
    write_tables(path, page)
    write_figures(path, page)
    return page


def _rebuild(folder: Path, page: Path | None, experiment: str | None, pair: str | None) -> None:
    """Rebuild tables, figures and claims from the recorded results alone."""

    if experiment is not None:
        find_blocks(experiment, pair)  # refuses unknown names
    results = load_results(folder)
    chosen = [k for k in results if experiment in (None, k[0]) and pair in (None, k[1])]
    if not chosen and (page is None or experiment or pair):
        raise ConfigError(
            f"{folder} has no runs.json of these experiments. Run them first, or name another "
            "folder with --results."
        )
    for key in chosen:
        _write(folder, results, *key)
        out.print(f"{folder.joinpath(*key)}: table.md, table.tex, figures", soft_wrap=True)
    if page is None:
        out.print("\n" + "\n\n".join(map(plain, claims_tables(results))), soft_wrap=True)
    else:
        write_claims(page, folder, results)
        out.print(f"{page}: the claims", soft_wrap=True)
    print_json({"results": [str(folder.joinpath(*key)) for key in chosen]})


def _list(place: Place, seeds: list[int], rounds: int | None) -> None:

    rows = [
        [experiment.name, block.pair, *_cells(block, place, seeds, rounds)]
        for experiment in EXPERIMENTS.values()
        for block in experiment.blocks.values()
    ]
    header = ["experiment", "pair", "rounds", "done", "time left"]
    out.print(table(header, rows, left=(0, 1)), soft_wrap=True)
    print_json([dict(zip(header, row, strict=True)) for row in rows])
    out.print(
        f"\nseeds {', '.join(map(str, seeds))}; done in {place.out}\n"
        "The time left is estimated for this machine's cores, from the rounds recorded so far.\n",
        soft_wrap=True,
    )
    for experiment in EXPERIMENTS.values():
        blocks = experiment.blocks.values()
        names = dict.fromkeys(c.name for block in blocks for c in block.contestants)
        out.print(f"{experiment.name}: {experiment.title}", soft_wrap=True)
        lines = textwrap.wrap(", ".join(names), 94, break_on_hyphens=False)
        out.print(textwrap.indent("\n".join(lines), "  "), soft_wrap=True)


def _cells(block: Block, place: Place, seeds: Sequence[int], rounds: int | None) -> list[str]:

    length = rounds or block.setting.rounds
    number = counts(block, place, seeds, length)
    left = seconds_left(block, place, seeds, length, available_cores())
    time = f"about {duration_text(left)}" if left else "-"
    return [str(length), f"{number['done']} of {number['runs']}", time]


def _state(block: Block, place: Place, seeds: Sequence[int], rounds: int | None) -> str:
    length, done, time = _cells(block, place, seeds, rounds)
    left = f", {time} left" if time != "-" else ""
    return f"{counted(int(length), 'round')}, {done} runs are done{left}"
