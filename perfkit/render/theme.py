"""Colours and the stable mode, shared by all views."""

from __future__ import annotations

import os

__all__ = ["COLOURS", "MASK", "STYLE", "is_stable"]

# Okabe and Ito's palette, which readers with colour-blindness can tell apart.
COLOURS = {
    "host": "#0072b2",
    "wait": "#9e9e9e",
    "drain": "rgba(128,128,128,0.45)",
    "kernel": "#e69f00",
    "h2d": "#009e73",
    "d2h": "#cc79a7",
    "d2d": "#56b4e9",
    "collective": "#d55e00",
    "compile": "#f0e442",
    "device": "#b8860b",
    "memset": "#7f9f7f",
    "step": "#7f8fa6",
    "annotation": "#5fa8a8",
    "python": "#a39063",
    "op": "#4a86c5",
    "runtime": "#8b6fc0",
    "other": "#999999",
}
MASK = "#"

# Inline, since front ends drop style sheets; `inherit` follows the light and the dark theme.
STYLE = {
    "box": "margin:4px 0;max-width:760px;font-size:13px;line-height:1.45;color:inherit",
    "head": "margin:0 0 4px",
    # JupyterLab gives tables a fixed layout, which shrinks the first column to nothing.
    "table": "border-collapse:collapse;table-layout:auto;margin:4px 0;color:inherit;font-size:13px",
    "cell": "padding:1px 14px 1px 0;text-align:left;vertical-align:top;border:0;background:none",
    "number": "padding:1px 14px 1px 0;text-align:right;white-space:nowrap;border:0;"
    "vertical-align:top;background:none;font-variant-numeric:tabular-nums",
    "note": "opacity:0.75",
}


def is_stable() -> bool:
    """Is PERFKIT_OUTPUT=stable set: should all that varies from run to run be masked?"""
    return os.environ.get("PERFKIT_OUTPUT") == "stable"
