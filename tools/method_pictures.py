"""Draw the pictures of docs/pictures.md into docs/pictures, from real plans (``make pictures``)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from tools.svg import arrow, box, picture, stack, text

import fedplt
from fedplt.report.palette import EMPTY, GREY, INK, MUTED, SERIES

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"


def plan_of(widths: list[int], ratios: list[float]) -> fedplt.Plan:
    """A plan for a network of Linear layers of these widths."""
    layers = [torch.nn.Linear(*pair) for pair in pairwise(widths)]
    return fedplt.make_plan(fedplt.cut(torch.nn.Sequential(*layers)), ratios)


def rows_of(plan: fedplt.Plan, client: int, layer: int) -> list[int]:
    parts = plan.assignment(client).slices[layer]
    return [row for part in parts for row in range(part.start, part.stop)]


def trained(plan: fedplt.Plan, client: int, layer: int, color: str) -> dict[int, str]:
    return dict.fromkeys(rows_of(plan, client, layer), color)


def cut_picture() -> str:
    """One layer: its rows are sub-layers; three clients train different ones."""
    plan = plan_of([6, 8], [0.5, 0.25, 0.25])
    parts = [text(20, 32, "A layer with 6 inputs and 8 outputs: 8 sub-layers", bold=True)]
    for row in range(8):
        y = 70 + row * 24
        parts.append(text(70, y + 15, f"output {row}", size=12, color=GREY, at="end"))
        parts += [box(80 + 22 * column, y, 20, 20, EMPTY, line=MUTED) for column in range(6)]
    parts.append(text(145, 288, "weight: a row per output", size=12, color=GREY, at="middle"))
    parts.append(arrow(225, 165, 265, 165))
    for client in range(3):
        x, color = 285 + client * 150, SERIES[client]
        rows = rows_of(plan, client, 0)
        parts.append(text(x + 55, 58, f"client {client}", size=13, at="middle", bold=True))
        parts.append(stack(x, 70, 110, 190, 8, dict.fromkeys(rows, color), gap=4))
        words = f"trains {len(rows)} of 8 rows"
        parts.append(text(x + 55, 288, words, size=12, color=color, at="middle"))
    words = "Grey rows are used in the forward pass: no gradient, no optimizer state, no upload."
    parts.append(text(20, 320, words, size=13, color=GREY))
    return picture(740, 340, parts, "How a layer is cut into sub-layers")


def balance_picture() -> str:
    """One client: its ratio is spread over the layers as evenly as their sizes allow."""
    names, sizes = ("fc1", "fc2", "fc3", "fc4"), [401_920, 131_328, 32_896, 1_290]
    parts = [text(20, 32, "What a client of ratio r trains of each layer", bold=True)]
    for column, ratio in enumerate((1.0, 0.29, 0.06)):
        found, x = fedplt.balanced_allocation(sizes, ratio), 150 + 200 * column
        parts.append(text(x, 64, f"r = {ratio:g}", size=13, bold=True, color=SERIES[column]))
        for row, share in enumerate(found.layer_ratios):
            y = 80 + 44 * row
            parts.append(box(x, y, 130, 24, EMPTY))
            parts.append(box(x, y, round(130 * share, 1), 24, SERIES[column]))
            parts.append(text(x + 136, y + 17, f"{100 * share:.0f} %", size=12, color=GREY))
    for row, (name, size) in enumerate(zip(names, sizes, strict=True)):
        parts.append(text(20, 92 + 44 * row, name, size=13))
        parts.append(text(20, 107 + 44 * row, f"{size:,} parameters", size=11, color=GREY))
    words = "Every layer contributes the same number of trained parameters, as far as it has them."
    parts.append(text(20, 284, words, size=13, color=GREY))
    return picture(740, 304, parts, "How a ratio is spread over the layers")


def rotation_picture() -> str:
    """Clients take turns through the sub-layers of a layer."""
    ratios = [0.5, 0.25, 0.25, 0.4, 0.15, 0.3, 0.2]
    plan = plan_of([4, 20], ratios)
    parts = [text(20, 32, "The next client takes the next sub-layers, around the end", bold=True)]
    for client, ratio in enumerate(ratios):
        y, rows = 60 + 30 * client, set(rows_of(plan, client, 0))
        parts.append(text(20, y + 16, f"client {client}, r = {ratio:g}", size=12))
        for row in range(20):
            fill = SERIES[client % len(SERIES)] if row in rows else EMPTY
            parts.append(box(140 + 28 * row, y, 26, 22, fill))
    y = 60 + 30 * len(ratios) + 14
    parts.append(text(20, y + 12, "trained by", size=12, color=GREY))
    for row, number in enumerate(plan.coverage[0]):
        parts.append(text(153 + 28 * row, y + 12, str(number), size=12, at="middle"))
    words = "20 sub-layers; the numbers of clients that train them differ by at most one."
    parts.append(text(20, y + 44, words, size=13, color=GREY))
    return picture(740, y + 64, parts, "Rotation: which client trains which sub-layers")


def aggregation_picture() -> str:
    """Numbers of a real round: one weight per sub-layer, three clients, their weighted mean."""
    plan = plan_of([1, 6], [1.0, 0.5, 0.5])
    model = torch.nn.Sequential(torch.nn.Linear(1, 6))
    layers = fedplt.cut(model)
    state = fedplt.bind_state(model, layers)
    state.zero_()
    aggregator, examples = fedplt.Aggregator(layers), (100, 200, 100)
    changes = []
    for client, number in enumerate(examples):
        state.zero_()
        with fedplt.train_only(model, plan.assignment(client)) as part, torch.no_grad():
            for leaf in part.parameters():
                leaf.add_((client + 1) * 0.2)
        update = part.update(num_examples=number)
        changes.append(state[:6].tolist())
        aggregator.add(update, plan.assignment(client))
    state.zero_()
    aggregator.apply(state)
    parts = [text(20, 32, "The server averages each sub-layer over its own clients", bold=True)]
    columns = [(f"client {c}, {n} examples", changes[c]) for c, n in enumerate(examples)]
    for column, (title, values) in enumerate([*columns, ("new global model", state[:6].tolist())]):
        x, last = 20 + 180 * column, column == len(examples)
        parts.append(text(x, 64, title, size=13, bold=last))
        for row in range(6):
            is_trained = last or row in rows_of(plan, column, 0)
            color = (INK if last else SERIES[column]) if is_trained else EMPTY
            parts.append(box(x, 78 + 32 * row, 140, 26, color))
            if is_trained:
                words = f"{values[row]:+.2f}"
                y = 96 + 32 * row
                parts.append(text(x + 70, y, words, size=13, color="#fff", at="middle"))
    parts.append(arrow(525, 170, 553, 170))
    first = rows_of(plan, 1, 0)[0]
    words = (
        f"Sub-layer {first}: (100 * 0.20 + 200 * 0.40) / (100 + 200) = {float(state[first]):.2f}; "
        "client 2 did not train it and does not count."
    )
    parts.append(text(20, 300, words, size=13, color=GREY))
    return picture(740, 320, parts, "Aggregation, sub-layer by sub-layer")


def overview_picture() -> str:
    """Unequal devices, the slices they train of three layers, one model."""
    names, ratios = ("desktop", "laptop", "phone", "phone", "sensor"), [1.0, 0.5, 0.25, 0.25, 0.1]
    plan = plan_of([12, 12, 10, 8], ratios)
    parts: list[str] = []
    for client, (name, ratio) in enumerate(zip(names, ratios, strict=True)):
        x, color = 20 + 108 * client, SERIES[client]
        parts.append(text(x + 44, 34, name, size=14, at="middle", bold=True))
        words = f"trains {100 * ratio:.0f} %"
        parts.append(text(x + 44, 53, words, size=12, color=color, at="middle"))
        for layer, rows in enumerate((12, 10, 8)):
            y = 68 + sum((120, 104, 86)[:layer])
            fills = trained(plan, client, layer, color)
            parts.append(stack(x, y, 88, (108, 92, 74)[layer], rows, fills))
    parts.append(arrow(566, 210, 612, 210))
    parts.append(text(589, 198, "average", size=12, color=GREY, at="middle"))
    parts.append(text(674, 34, "one model", size=14, at="middle", bold=True))
    parts.append(text(674, 53, "slice by slice", size=12, color=GREY, at="middle"))
    for layer, rows in enumerate((12, 10, 8)):
        y = 68 + sum((120, 104, 86)[:layer])
        parts.append(stack(630, y, 88, (108, 92, 74)[layer], rows, dict.fromkeys(range(rows), INK)))
    words = "Blocks are layers, stripes their sub-layers; colored ones are trained and uploaded."
    parts.append(text(20, 388, words, size=13, color=GREY))
    return picture(740, 404, parts, "Every device trains a slice of every layer")


PICTURES = {
    "overview": overview_picture,
    "cut": cut_picture,
    "balance": balance_picture,
    "rotation": rotation_picture,
    "aggregation": aggregation_picture,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
