"""Identity in the ids of requests, for those that an engine makes of one call without the call's arguments.

vLLM's beam search makes a request for each token of each beam, without `vllm_xargs`, but under ids that begin
with the call's. So the gateway encodes into the id of such a call what the scheduler has to know of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from autellix_wire import engine_args

MARK = "autellix-"
_BEAM = re.compile(rf"{MARK}((?:[0-9a-f]{{2}})+)-[0-9a-f]+-beam-\d+")


def marked_id(args: Mapping[str, str | float]) -> str:
    """Return the id for a call of which its engine makes several requests without its arguments.

    It leaves out what holds for one request only: the end of the program, and the ends of others.
    """
    once = (engine_args.LAST, engine_args.ENDED)
    return MARK + msgspec.json.encode({name: args[name] for name in args if name not in once}).hex()


def args_in(request_id: str) -> Mapping[object, object]:
    """Return the arguments in the id of one of these requests; none in any other id."""
    found = _BEAM.search(request_id)
    if found is None:
        return {}
    try:
        args = msgspec.json.decode(bytes.fromhex(found[1]))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return args if isinstance(args, dict) else {}
