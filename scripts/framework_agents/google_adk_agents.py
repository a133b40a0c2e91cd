import asyncio
import logging

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

logging.disable(logging.WARNING)


def make(url):
    def model():
        return LiteLlm(model="openai/m", api_base=f"{url}/v1", api_key="key")

    halves = [LlmAgent(name=name, model=model(), instruction="Help.") for name in ("left", "right")]
    tools = [AgentTool(half) for half in halves]
    return LlmAgent(name="main", model=model(), instruction="Delegate.", tools=tools)


async def tasks(url, task):
    runner = InMemoryRunner(agent=make(url), app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=task)])
    async for _ in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        pass


def threads(url, task):
    runner = InMemoryRunner(agent=make(url), app_name="app")
    session = asyncio.run(runner.session_service.create_session(app_name="app", user_id="user"))
    message = types.Content(role="user", parts=[types.Part(text=task)])
    list(runner.run(user_id="user", session_id=session.id, new_message=message))
