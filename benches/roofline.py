#!/usr/bin/env python3
"""Draws the roofline of `sparseop bench --json`: plans and cuSPARSE against the copy bandwidth.

usage: roofline.py COPY_GBPS FILE.jsonl... > roofline.svg

One point per matrix for the chosen plan, at its operations per byte and operations per second; a
hollow one for the fastest algorithm of cuSPARSE at the same intensity. The line is the copy bandwidth.
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 460, 70, 50, 20, 20
X, Y = (0.05, 1.0), (50.0, 4000.0)
COLORS = {"f32": "#1f6fb4", "f64": "#c8501e"}


def place(value, bounds, low, high):
    a, b = map(math.log, bounds)
    return low + (math.log(value) - a) / (b - a) * (high - low)


def x_of(value):
    return place(value, X, LEFT, WIDTH - RIGHT)


def y_of(value):
    return place(max(value, Y[0]), Y, HEIGHT - BOTTOM, TOP)


def points(path):
    for line in open(path):
        row = json.loads(line)
        runs = [r for r in row["runs"] if r.get("completed")]
        ours = [r for r in runs if r["engine"] == "sparseop" and r["plan"] == row["auto_plan"]]
        theirs = [r["median_us"] for r in runs if r["engine"] == "cusparse"]
        if ours and theirs:
            flops = 2 * row["nnz"]
            at = flops / ours[0]["traffic_bytes"]
            rates = [flops / us / 1e3 for us in (ours[0]["median_us"], min(theirs))]
            yield row["matrix"].removeprefix("gallery:"), row["dtype"], at, *rates


def main(copy, paths):
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for x in (0.05, 0.1, 0.2, 0.5, 1.0):
        out.append(f'<line x1="{x_of(x):.1f}" x2="{x_of(x):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>'
                   f'<text x="{x_of(x):.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{x:g}</text>')
    for y in (50, 100, 200, 500, 1000, 2000, 4000):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y_of(y) + 4:.1f}" text-anchor="end">{y}</text>')
    right = min(X[1], Y[1] / copy)
    out.append(f'<line x1="{x_of(X[0]):.1f}" y1="{y_of(copy * X[0]):.1f}" x2="{x_of(right):.1f}" y2="{y_of(copy * right):.1f}" '
               f'stroke="black" stroke-width="2"/>')
    for path in paths:
        for name, dtype, at, ours, theirs in points(path):
            x, color = x_of(at), COLORS[dtype]
            out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y_of(ours):.1f}" y2="{y_of(theirs):.1f}" stroke="{color}" opacity="0.4"/>'
                       f'<circle cx="{x:.1f}" cy="{y_of(theirs):.1f}" r="3" fill="white" stroke="{color}"/>'
                       f'<circle cx="{x:.1f}" cy="{y_of(ours):.1f}" r="3.5" fill="{color}"/>'
                       f'<text x="{x + 5:.1f}" y="{y_of(ours) - 4:.1f}" font-size="9">{name}</text>')
    out.append(f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">operations a byte of the plan</text>'
               f'<text x="16" y="{HEIGHT / 2:.0f}" transform="rotate(-90 16 {HEIGHT / 2:.0f})" text-anchor="middle">Gflop/s</text>'
               f'<text x="{LEFT + 10}" y="{TOP + 14}">line: copy at {copy:.0f} GB/s; full: auto; hollow: the fastest of cuSPARSE; '
               f'<tspan fill="{COLORS["f32"]}">f32</tspan> <tspan fill="{COLORS["f64"]}">f64</tspan></text></svg>')
    print("\n".join(out))


main(float(sys.argv[1]), sys.argv[2:])
