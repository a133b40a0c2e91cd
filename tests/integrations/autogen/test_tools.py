"""Decorated functions as tools."""

from __future__ import annotations

import pytest

import autellix

tools = pytest.importorskip("autogen_core.tools")
pydantic = pytest.importorskip("pydantic")


class Item(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    name: str


def test_decorated_function_with_postponed_annotations() -> None:
    """AutoGen resolves the annotations of this module in the globals of the function that it gets."""

    @autellix.thread("tool")
    async def look_up(item: Item) -> Item:
        return item

    schema = tools.FunctionTool(look_up, "Look it up").schema
    assert schema["parameters"]["required"] == ["item"]
