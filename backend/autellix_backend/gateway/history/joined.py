"""One program from its parts at several workers: each has the calls that it served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from autellix_backend.gateway.history.ended_program import EndedCall, EndedProgram
from autellix_backend.gateway.history.history import OpenProgram


def joined(parts: Sequence[EndedProgram]) -> EndedProgram:
    """Return an ended program from its parts, of which there is at least one.

    Parts that were read from the same file share calls.
    """
    if len(parts) == 1:
        return parts[0]
    distinct = list(dict.fromkeys(parts))
    began_at_s = min(part.began_at_s for part in distinct)
    return replace(
        distinct[0],
        name=next((part.name for part in distinct if part.name is not None), None),
        owner=next((part.owner for part in distinct if part.owner is not None), None),
        began_at_s=began_at_s,
        ended_at_s=max(part.ended_at_s for part in distinct),
        calls=tuple(_calls((part.began_at_s - began_at_s, part.calls) for part in distinct)),
        left_out=sum(part.left_out for part in distinct),
    )


def joined_by_id(parts: Iterable[EndedProgram]) -> list[EndedProgram]:
    """Return each program of these parts once."""
    found: dict[str, list[EndedProgram]] = {}
    for part in parts:
        found.setdefault(part.program_id, []).append(part)
    return list(map(joined, found.values()))


def joined_living(parts: Sequence[OpenProgram]) -> OpenProgram | None:
    """Return a living program from its parts; None without any.

    All processes of a machine share the clock of its times.
    """
    if not parts:
        return None
    start_s = min(part.start_s for part in parts)
    return OpenProgram(
        tenant=parts[0].tenant,
        start_s=start_s,
        calls=_calls((part.start_s - start_s, part.calls) for part in parts),
        left_out=sum(part.left_out for part in parts),
    )


def _calls(parts: Iterable[tuple[float, Iterable[EndedCall]]]) -> list[EndedCall]:
    """Return the calls of parts in order; each part comes with its delay (s) after the program's start."""
    found: dict[tuple[str, int], EndedCall] = {}
    for later_s, calls in parts:
        for call in calls:
            moved = replace(call, start_s=call.start_s + later_s, finish_s=call.finish_s + later_s)
            found.setdefault((call.call_id, round(1000 * moved.finish_s)), moved)
    return sorted(found.values(), key=lambda call: call.start_s)
