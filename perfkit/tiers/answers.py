"""What a person knows of a tier and no file system tells: kept beside the other results."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec

from perfkit import ledger
from perfkit.errors import UsageError
from perfkit.records.tiers import Tier, TierAnswer, Tristate

__all__ = ["applied", "keep", "parse"]

NAME = "tier answer"


def parse(text: str) -> TierAnswer:
    """`PATH:persistent=yes,shared=no`. Raises UsageError in one line."""
    path, colon, rest = text.rpartition(":")
    fields: dict[str, str] = {}
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        if not (colon and equals) or key not in ("persistent", "shared"):
            raise UsageError(f"{text!r}: write PATH:persistent=yes,shared=no")
        if value not in get_args(Tristate):
            raise UsageError(f"{text!r}: {key} is one of {', '.join(get_args(Tristate))}")
        fields[key] = value
    if not path.strip():
        raise UsageError(f"{text!r}: name the folder: PATH:persistent=yes,shared=no")
    return TierAnswer.of(path=str(Path(path.strip()).expanduser().resolve()), **fields)


def keep(answer: TierAnswer) -> None:
    """Write it to the ledger; the newest of a path counts."""
    ledger.add(answer, NAME)


def applied(tier: Tier) -> Tier:
    """The tier with the answers that were kept for its path."""
    filled: dict[str, str] = {}
    if not tier.path or tier.kind == "cache":
        return tier
    for entry in ledger.entries(NAME):
        try:
            answer = TierAnswer.from_json(bytes(entry.record))
        except msgspec.ValidationError:
            continue
        if answer.path == tier.path:
            filled |= {
                key: value
                for key in ("persistent", "shared")
                if (value := getattr(answer, key)) is not None
            }
    if not filled:
        return tier
    return msgspec.structs.replace(tier, filled_in=tuple(sorted(filled)), **filled)
