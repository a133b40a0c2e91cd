"""Fan-out and fan-in: one agent drafts, two review the draft side by side, one takes the reviews together."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow
from autogen_ext.models.openai import OpenAIChatCompletionClient

EXPECTED: dict[str, tuple[str, ...]] = {
    "draft": (),
    "grammar": ("draft",),
    "style": ("draft",),
    "final": ("grammar", "style"),
}


def build(client: OpenAIChatCompletionClient) -> GraphFlow:
    def agent(name: str, task: str) -> AssistantAgent:
        return AssistantAgent(name, model_client=client, system_message=task)

    draft = agent("draft", "Draft a paragraph on climate change.")
    grammar = agent("grammar", "Correct the grammar of the draft.")
    style = agent("style", "Improve the style of the draft.")
    final = agent("final", "Put both reviews into the final text.")
    builder = DiGraphBuilder()
    builder.add_node(draft).add_node(grammar).add_node(style).add_node(final)
    builder.add_edge(draft, grammar).add_edge(draft, style)
    builder.add_edge(grammar, final).add_edge(style, final)
    return GraphFlow([draft, grammar, style, final], graph=builder.build())


async def write(base_url: str, model: str) -> TaskResult:
    client = OpenAIChatCompletionClient(
        model=model,
        base_url=base_url,
        api_key="key",
        max_tokens=8,
        temperature=0,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": "unknown",
        },
    )
    try:
        return await build(client).run(task="Write about the sea.")
    finally:
        await client.close()


def run(base_url: str, model: str) -> TaskResult:
    return asyncio.run(write(base_url, model))
