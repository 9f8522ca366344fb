"""The tier table of a named other machine, to be read beside yours."""

from __future__ import annotations

from perfkit.records.tiers import Tier

__all__ = ["NAME", "reference_tiers"]

NAME = "ABCI, April 2022 (Bando, AIST: slides on fast deep learning, page 6)"
_ZEROS = "measured there: dd on a file of zeros, the page cache not considered"
_SHEET = "a data sheet's figure"
# Capacities as printed there, whose GB and TB are taken for binary.
_GB, _TB = 2**30, 2**40


def reference_tiers() -> tuple[Tier, ...]:
    """The rows as the slides have them: three were measured there, the others are nominal."""
    return (
        Tier(
            name="GPU memory",
            kind="device",
            persistent="no",
            shared="no",
            capacity_bytes=40 * _GB,
            read_Bps=1555e9,
            figures="nominal",
            note=_SHEET + ", for each GPU",
        ),
        Tier(
            name="CPU memory",
            kind="memory",
            persistent="no",
            shared="no",
            capacity_bytes=480 * _GB,
            read_Bps=204e9,
            figures="nominal",
            note=_SHEET + ", for each node",
        ),
        Tier(
            name="local scratch",
            kind="storage",
            persistent="partly",
            shared="no",
            capacity_bytes=2 * _TB,
            read_Bps=3.2e9,
            figures="nominal",
            note=_SHEET + ", for each node; it lasts as long as the reservation",
        ),
        Tier(
            name="BeeOND",
            kind="storage",
            persistent="no",
            shared="yes",
            capacity_bytes=2 * _TB,
            read_Bps=3.2e9,
            multiplier="nodes",
            figures="nominal",
            note=_SHEET + ", times the number of nodes",
        ),
        Tier(
            name="home",
            kind="storage",
            path="/home",
            persistent="yes",
            shared="yes",
            capacity_bytes=200 * _GB,
            read_Bps=4.7e9,
            figures="elsewhere",
            note=_ZEROS,
        ),
        Tier(
            name="global scratch",
            kind="storage",
            path="/scratch",
            persistent="yes",
            shared="yes",
            capacity_bytes=10 * _TB,
            read_Bps=4.8e9,
            figures="elsewhere",
            note=_ZEROS,
        ),
        Tier(
            name="group area",
            kind="storage",
            path="/groups",
            persistent="yes",
            shared="yes",
            capacity_bytes=100 * _TB,
            read_Bps=2.5e9,
            figures="elsewhere",
            note=_ZEROS,
        ),
    )
