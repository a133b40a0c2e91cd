"""The identity of a call goes with every request that an engine makes of it."""

from __future__ import annotations

import pytest

from autellix_backend.reports.call_arguments import read_identity
from autellix_backend.reports.request_ids import MARK, args_in, marked_id
from autellix_wire import engine_args

ARGS = {engine_args.PROGRAM: "team/p-1~世", engine_args.CALL: "c~1", engine_args.TENANT: "team"}


@pytest.mark.parametrize("number", [0, 17])
def test_a_beam_has_the_arguments_of_its_call(number: int) -> None:
    assert args_in(f"chatcmpl-{marked_id(ARGS)}-0123456789abcdef-beam-{number}-a1b2c3d4") == ARGS


@pytest.mark.parametrize(
    "request_id",
    [
        "chatcmpl-1",
        f"chatcmpl-{marked_id(ARGS)}",
        f"{MARK}zz-01-beam-0",
        f"{MARK}7b-01-beam-0",
        f"{MARK}{b'[1]'.hex()}-01-beam-0",
        f"{MARK}{(b'[' * 5000).hex()}-01-beam-0",
    ],
)
def test_other_ids_have_none(request_id: str) -> None:
    assert args_in(request_id) == {}


def test_the_scheduler_knows_a_beams_program_tenant_and_call() -> None:
    request_id = f"cmpl-{marked_id(ARGS)}-01-beam-1"
    identity = read_identity(request_id, None, "session")
    assert (identity.program_id, identity.arrival.tenant, identity.call_id) == ("team/p-1~世", "team", "c~1")


def test_a_requests_own_arguments_go_before_its_id() -> None:
    other = {**ARGS, engine_args.PROGRAM: "mine"}
    identity = read_identity(f"cmpl-{marked_id(ARGS)}-01-beam-1", other, None)
    assert identity.program_id == "mine"
