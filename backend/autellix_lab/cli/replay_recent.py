"""`python -m autellix_lab.cli.replay_recent`: simulate a gateway's recent programs for its page.

Reads one JSON document from standard input: `engines`, `scheduler` and `programs` as the gateway's API has
them, and the names of `policies`. Writes one to standard output. Runs with low priority.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from autellix_lab.cli.arguments import InputError
from autellix_lab.cli.whatif import estimates, settings_of

NICENESS = 10


def replay(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the programs took, and what they are estimated to take under each policy.

    Raises:
        InputError: if the programs lack what a simulation needs.
    """
    programs = document["programs"]
    settings = settings_of(document["engines"], document["scheduler"], programs)
    found = estimates(programs, settings, document["policies"])
    names = {program["program_id"]: program["name"] for program in programs}
    return {
        "policy": settings.scheduler.policy,
        "simulated_over_measured": found.simulated_over_measured,
        "left_out": len(programs) - len(found.measured_s),
        "programs": [
            {"program_id": each, "name": names[each], "measured_s": measured_s}
            for each, measured_s in found.measured_s.items()
        ],
        "policies": [
            {"policy": policy, "estimated_s": list(estimated_s.values())}
            for policy, estimated_s in found.estimated_s.items()
        ],
    }


def main() -> int:
    """Replay; 0 on success, 2 with a message for the user."""
    os.nice(NICENESS)
    try:
        answer = replay(msgspec.json.decode(sys.stdin.buffer.read()))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
