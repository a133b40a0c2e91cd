"""AutoGen: `pip install autogen-agentchat 'autogen-ext[openai]' git+https://github.com/autellix/autellix`."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat

import autellix  # the only line to add
from autellix_autogen import AutellixChatCompletionClient

client = AutellixChatCompletionClient(model="smollm2", base_url="http://127.0.0.1:8000/v1")
agents = [AssistantAgent(name, client) for name in ("writer", "editor")]
team = RoundRobinGroupChat(agents, name="essay", termination_condition=MaxMessageTermination(3))
print(asyncio.run(team.run(task="Write about the sea.")).messages[-1].to_text())
