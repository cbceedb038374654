"""Strategies for odd inputs: odd values, and valid texts and values with some parts changed."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

ODD_NUMBERS = st.sampled_from(
    [0, -1, 1, 2**31, 2**63, 10**9, 10**30, 10**400, 0.5, 2.5, -0.0, 1e-320, 1e300, float("inf"),
     float("-inf"), float("nan")]
)  # fmt: skip
ODD_TEXTS = st.sampled_from(
    ["", "\0", "../../x", "/dev/zero", "os:system", "a:b", ".", "nan", "\ud800", "9" * 5000,
     "[" * 3000, "fedavg", "full", "x" * 300]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), ODD_NUMBERS,
    ODD_TEXTS,
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def changed_text(text: str) -> st.SearchStrategy[bytes]:
    """A text with some of its parts replaced, doubled or lost."""
    data = text.encode()
    place = st.integers(0, len(data))
    part = st.one_of(
        st.binary(max_size=8), ODD_TEXTS.map(lambda odd: odd.encode("utf-8", "replace")),
        st.sampled_from([b"[", b"]", b"=", b'"', b"\n", b"{", b",", b"-", b"1e999", b"inf"]),
    )  # fmt: skip
    edits = st.lists(st.tuples(place, place, part), min_size=1, max_size=4)

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        result = data
        for start, stop, new in changes:
            end = max(start, min(stop, start + 20))
            result = result[:start] + new + result[end:]
        return result

    return edits.map(apply)


def changed_values(values: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Values of which some, at any depth, are odd, lost or new."""
    places = paths(values, ())
    edits = st.lists(
        st.tuples(st.sampled_from(places), st.one_of(VALUES, st.just(LOST)), st.booleans()),
        min_size=1, max_size=3,
    )  # fmt: skip

    def apply(changes: list[tuple[tuple[Any, ...], Any, bool]]) -> dict[str, Any]:
        result = _copy(values)
        for path, value, is_new in changes:
            _put(result, path, value, is_new)
        return result

    return edits.map(apply)


LOST = object()


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def paths(value: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    items: Any = value.items() if isinstance(value, dict) else []
    if isinstance(value, list):
        items = enumerate(value[:3])
    below = [found for key, item in items for found in paths(item, (*path, key))]
    return [*([path] if path else []), *below]


def _put(values: Any, path: tuple[Any, ...], value: Any, is_new: bool) -> None:
    *way, last = path
    try:
        for part in way:
            values = values[part]
    except (LookupError, TypeError):
        return  # changed before
    if isinstance(values, dict) and value is LOST:
        values.pop(last, None)
    elif isinstance(values, dict):
        values[f"{last}_new" if is_new else last] = value
    elif isinstance(values, list) and isinstance(last, int) and value is not LOST:
        values[last:] = [value, *values[last + 1 :]]
