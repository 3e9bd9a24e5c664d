"""The decision of an operator as a page of HTML, for notebooks."""

import html

# Widths in pixels.
WIDTH, HEIGHT, BAR = 360, 90, 140


def duration(seconds):
    """A time in a readable unit."""
    if seconds is None:
        return ""
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"


def size(count):
    """A number of bytes in a readable unit."""
    for name in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {name}"
        count /= 1024
    return f"{count:.3g} TiB"


def bins(histogram, count=40):
    """Ranges of row lengths with their numbers of rows; of equal width on a scale of powers where
    lengths differ much."""
    if not histogram:
        return []
    shortest, longest = histogram[0][0], histogram[-1][0]
    edges = {shortest}
    if longest - shortest < count:
        edges.update(range(shortest, longest + 2))
    elif longest <= 2 * count:
        edges.update(shortest + (longest + 1 - shortest) * i // count for i in range(count + 1))
    else:
        edge = max(shortest, 1)
        while edge <= longest:
            edges.add(edge)
            edge *= 2
        edges.add(longest + 1)
    edges = sorted(edges)
    found = []
    for first, end in zip(edges, edges[1:]):
        rows = sum(rows for length, rows in histogram if first <= length < end)
        found.append((first, end - 1, rows))
    return found


def picture(stats):
    """Histogram of the row lengths."""
    found = bins(stats["histogram"])
    if not found:
        return ""
    most, width = max(rows for _, _, rows in found), WIDTH / len(found)
    bars = []
    for number, (first, last, rows) in enumerate(found):
        height = HEIGHT * rows / most if rows else 0
        height = max(height, 1) if rows else 0
        label = f"{first}" if first == last else f"{first} to {last}"
        bars.append(
            f'<rect x="{number * width:.1f}" y="{HEIGHT - height:.1f}" '
            f'width="{max(width - 1, 1):.1f}" height="{height:.1f}" fill="#4477aa">'
            f"<title>{rows} rows of {label} entries</title></rect>"
        )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT + 16}" role="img" aria-label="row lengths">'
        + "".join(bars)
        + f'<g font-size="11" fill="currentColor"><text x="0" y="{HEIGHT + 13}">'
        f'{found[0][0]}</text><text x="{WIDTH}" y="{HEIGHT + 13}" text-anchor="end">'
        f"{found[-1][1]} entries per row</text></g></svg>"
    )


def operator(op):
    """An operator: the matrix, its row lengths, and the candidates with their times."""
    stats, decision = op.stats, op.decision
    times = [c["measured"] or c["predicted"] for c in decision["candidates"]]
    shortest = min((time for time in times if time), default=1)
    rows = []

    def order(entry):
        time, candidate = entry
        chosen, measured = candidate["verdict"] == "chosen", candidate["measured"] is not None
        return (not chosen, not measured, time or float("inf"))

    candidates = sorted(zip(times, decision["candidates"]), key=order)
    for time, candidate in candidates[:12]:
        chosen = candidate["verdict"] == "chosen"
        length = min(BAR, 20 * time / shortest) if time else 0
        color = "#228833" if chosen else "#bbbbbb"
        bar = f'<div style="background:{color};height:10px;width:{length:.0f}px"></div>'
        style = ' style="font-weight:bold"' if chosen else ""
        cells = [
            html.escape(candidate["plan"]),
            duration(candidate["predicted"]),
            duration(candidate["measured"]),
            size(candidate["matrix_bytes"]),
            bar,
            html.escape(candidate["verdict"]),
        ]
        rows.append(f"<tr{style}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(
        f"<th>{name}</th>" for name in ("plan", "predicted", "measured", "matrix", "", "verdict")
    )
    m, n = op.shape
    return (
        f"<div><p><b>{html.escape(decision['plan'])}</b> on {html.escape(op.device)}: {m} × {n}, "
        f"{op.nnz} entries of {op.dtype}, {size(op.memory_bytes)} packed</p>"
        f"{picture(stats)}<table style='border-spacing:8px 1px;white-space:nowrap'>"
        f"<thead style='text-align:left'><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
