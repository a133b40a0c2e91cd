"""What a library's next version may do to the patches: add a parameter, move a class."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from autellix._instrument.patches import Patches

CHECK = """
    import importlib, json, sys
    import warnings

    import autellix
    from autellix._instrument.switch import INSTRUMENTORS, RAW_HTTP, _switch

    warnings.simplefilter("ignore")
    autellix.instrument(raw_http=True)
    for name in INSTRUMENTORS:
        if name.startswith("vllm."):
            continue
        try:
            importlib.import_module(name)
        except (ImportError, AttributeError):
            # Some cannot be imported beside others.
            pass

    def is_open(function):
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        # An async context manager of contextlib hands its arguments on.
        return code is not None and code.co_flags & 4 and code.co_flags & 8

    closed = [entry[1] for entry in _switch.patches._applied if not is_open(entry[3])]
    print(json.dumps([len(_switch.patches._applied), closed, _switch.patches.missing]))
"""


def test_every_patch_takes_any_argument_and_finds_its_place(run_script: Callable[..., str]) -> None:
    """With each library that is installed but vLLM, which loads for half a minute; its engines are tested."""
    # Without a look at the network, of which LiteLLM warns.
    count, closed, missing = json.loads(run_script(CHECK, LITELLM_LOCAL_MODEL_COST_MAP="True"))
    assert count > 30
    assert closed == []
    assert missing == []


class Library(ModuleType):
    """A library of which one class has moved."""

    class Kept:
        def method(self) -> str:
            return "original"


def wrap(original: Callable[..., str]) -> Callable[..., str]:
    def method(*args: Any, **kwargs: Any) -> str:
        return original(*args, **kwargs) + "+ours"

    return method


def test_what_is_gone_is_listed_and_the_rest_is_patched() -> None:
    library = Library("library")
    patches = Patches()
    assert not patches.apply(library, "Moved.method", wrap)
    assert not patches.apply(library, "Kept.renamed", wrap)
    assert not patches.apply(library, "moved.deeper.method", wrap)
    assert patches.apply(library, "Kept.method", wrap)
    assert library.Kept().method() == "original+ours"
    assert patches.missing == ["library.Moved.method", "library.Kept.renamed", "library.moved.deeper.method"]
    patches.revert()
    assert library.Kept().method() == "original"
    assert patches.missing == []


def test_what_another_library_has_wrapped_before_can_be_unwrapped() -> None:
    """As OpenTelemetry does, which looks for its own wrapper: ours is inside it."""
    wrapt = pytest.importorskip("wrapt")
    library: Any = ModuleType("library")
    library.Kept = type("Kept", (), {"method": lambda _self: "original"})
    plain = library.Kept.method

    def theirs(wrapped: Any, _instance: object, args: Any, kwargs: Any) -> str:
        return str(wrapped(*args, **kwargs)) + "+theirs"

    patches = Patches()
    wrapt.wrap_function_wrapper(library, "Kept.method", theirs)
    assert patches.apply(library, "Kept.method", wrap)
    assert library.Kept().method() == "original+ours+theirs"
    proxy = vars(library.Kept)["method"]
    assert isinstance(proxy, wrapt.FunctionWrapper)
    # Switched off in both orders.
    library.Kept.method = proxy.__wrapped__
    assert library.Kept().method() == "original+ours"
    patches.revert()
    assert vars(library.Kept)["method"] is plain
    library.Kept.method = proxy
    proxy.__wrapped__ = plain
    assert patches.apply(library, "Kept.method", wrap)
    patches.revert()
    assert library.Kept().method() == "original+theirs"
