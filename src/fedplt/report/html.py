"""A run as one self-contained HTML page: curve, plan, costs, settings."""

from __future__ import annotations

import base64
import html
import io
from collections import Counter
from pathlib import Path

from matplotlib.figure import Figure

from fedplt.errors import RunError
from fedplt.federation import History, RoundRecord, RunFolder, dump_config, privacy_text
from fedplt.files import write_text
from fedplt.planning import Plan, download_bytes, make_plan
from fedplt.report.dynamics import diagnostics_figure, sampling_figure
from fedplt.report.figures import plan_figure, score_figure
from fedplt.text import bytes_text, flops_text

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2733; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; } td, th { padding: .25rem .9rem .25rem 0; text-align: right; }
th { border-bottom: 1px solid #9aa7b4; font-weight: 600; } td:first-child, th:first-child
{ text-align: left; }
img { max-width: 100%; } pre { background: #f4f6f8; padding: 1rem; overflow-x: auto; }
.big { font-size: 2rem; font-weight: 600; } .note { color: #586674; }
"""


def write_report(folder: RunFolder) -> Path:
    """Write ``report.html`` into a run's folder and return its path."""
    history, plan, config = folder.history(), folder.plan(), folder.config()
    if not history.evaluated:
        raise RunError(f"{folder.path} has no evaluated round yet: nothing to report.")
    label = str(config.method["name"])
    body = [
        f"<h1>{html.escape(config.name)}</h1>",
        _headline(history, config.rounds),
        _privacy(history),
        f"<h2>{html.escape(_capital(history.metric.name))}</h2>",
        _image(score_figure({label: [history]}), f"{history.metric.name} by round"),
        "<h2>Which client trains what</h2>",
        _image(plan_figure(plan), "clients by sub-layers"),
        f"<pre>{html.escape(plan.summary())}</pre>",
        _sampling(history, config.sampling.name),
        _diagnostics(history, config.diagnostics.window),
        "<h2>Costs</h2>",
        _costs(history, plan),
        _rejected(history),
        "<h2>Configuration</h2>",
        f"<pre>{html.escape(dump_config(config))}</pre>",
    ]
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{html.escape(config.name)}</title><style>{STYLE}</style></head><body>"
        + "\n".join(body)
        + "</body></html>"
    )
    path = folder.path / "report.html"
    write_text(path, page)
    return path


def _headline(history: History, rounds: int) -> str:
    last, metric = min(10, len(history.scores)), history.metric
    score, name = (html.escape(text) for text in (metric.text(history.final_score()), metric.name))
    text = (
        f"<p><span class='big'>{score}</span> validation {name}, "
        f"mean of the last {last} evaluations, after {history.rounds[-1].round} of {rounds} rounds"
    )
    if history.test_score is not None:
        text += f"; {html.escape(metric.text(history.test_score))} on the test set"
    return text + ".</p>"


def _privacy(history: History) -> str:
    if history.privacy is None:
        return ""
    return f"<p><b>Privacy:</b> {html.escape(privacy_text(history.privacy))}</p>"


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _sampling(history: History, name: str) -> str:
    figure = sampling_figure(history)
    if figure is None:
        return ""
    said = [record.sampling for record in history.rounds if record.sampling]
    text = f"{name}: {sum(r.num_clients for r in history.rounds) / len(history.rounds):.1f} clients"
    text += " uploaded per round on average"
    if "budget" in said[0]:
        spent = sum(entry["cost"] for entry in said) / len(said)
        text += f", costing {spent:.2f} of a budget of {said[0]['budget']:g}"
    ratios = sorted(entry["variance_ratio"] for entry in said if "variance_ratio" in entry)
    if ratios:
        text += f"; the median variance is {ratios[len(ratios) // 2]:.2f} times that of uniform "
        text += "sampling at the same budget"
    for note, number in Counter(entry["note"] for entry in said if "note" in entry).items():
        text += f". In {number} of {len(said)} rounds {note}"
    picture = _image(figure, "client sampling by round")
    return f"<h2>Client sampling</h2>{picture}<p class='note'>{html.escape(text)}.</p>"


def _diagnostics(history: History, window: int) -> str:
    figure = diagnostics_figure(history)
    if figure is None:
        return ""
    last = next(r.diagnostics for r in reversed(history.rounds) if r.diagnostics)
    text = f"Effective perturbation looks back over {window} rounds; 1: all move the same way."
    if "layer_divergence" in last:
        text += f" Divergence of the layers in the last round: {last['layer_divergence']:.3f}."
    never = {
        name: layer["never_trained"]
        for name, layer in last["layers"].items()
        if layer["never_trained"]
    }
    for name, number in never.items():
        text += f" {number} sub-layers of {name} were never trained."
    picture = _image(figure, "update magnitude, effective perturbation, ages")
    return f"<h2>How the model moved</h2>{picture}<p class='note'>{html.escape(text)}</p>"


def _costs(history: History, plan: Plan) -> str:
    total, rounds = history.rounds[-1].total, len(history.rounds)
    uploads = sum(record.num_clients for record in history.rounds)
    full_up = uploads * download_bytes(make_plan(plan.layers, [1.0]).assignment(0))
    seconds = sum(record.seconds for record in history.rounds)
    rows = [
        ("uploaded", bytes_text(total.bytes_up), bytes_text(total.bytes_up / rounds)),
        ("uploaded if all trained everything", bytes_text(full_up), bytes_text(full_up / rounds)),
        ("downloaded", bytes_text(total.bytes_down), bytes_text(total.bytes_down / rounds)),
        ("computation, exact", flops_text(total.flops), flops_text(total.flops / rounds)),
        (
            "computation, the paper's model",
            flops_text(total.paper_flops),
            flops_text(total.paper_flops / rounds),
        ),
        ("time on this machine", f"{seconds:.0f} s", f"{seconds / rounds:.2f} s"),
    ]
    simulated = total.simulated_seconds
    if simulated:
        each = f"{simulated / rounds:.2f} s"
        rows.append(("time on the clients' devices, simulated", f"{simulated:.0f} s", each))
    away = sum(len(record.dropped) + len(record.late) for record in history.rounds)
    if away:
        rows.append(("clients away (dropped out or late)", f"{away}", f"{away / rounds:.1f}"))
    cells = "".join(
        f"<tr><td>{name}</td><td>{whole}</td><td>{each}</td></tr>" for name, whole, each in rows
    )
    mean = float(plan.achieved_ratios.mean())
    return (
        f"<table><tr><th></th><th>all rounds</th><th>per round</th></tr>{cells}</table>"
        f"<p class='note'>A client trains {100 * mean:.1f} % of the model on average. Exact "
        "computation counts the matrix products and convolutions of local training. The paper's "
        "model lets the whole backward pass scale with the trained fraction; a real one saves "
        "less.</p>"
    )


def _rejected(history: History) -> str:
    refused = [
        f"round {record.round}, client {client}{_device(record, client)}: {reason}"
        for record in history.rounds
        for client, reason in record.rejected.items()
    ]
    if not refused:
        return ""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in refused[:50])
    return f"<h2>Refused updates ({len(refused)})</h2><ul>{items}</ul>"


def _device(record: RoundRecord, client: str) -> str:
    name = record.devices.get(client)
    return f" ({name})" if name else ""


def _image(figure: Figure, description: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<img alt='{html.escape(description, quote=True)}' src='data:image/png;base64,{data}'>"
