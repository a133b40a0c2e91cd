from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

PARAMETERS = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}


def generator(url):
    return OpenAIChatGenerator(api_key=Secret.from_token("key"), model="m", api_base_url=f"{url}/v1")


def make(url):
    def half(name):
        def run(question):
            agent = Agent(chat_generator=generator(url), system_prompt="Help.")
            return agent.run([ChatMessage.from_user(question)])["last_message"].text

        return Tool(name=name, description="Do half.", parameters=PARAMETERS, function=run)

    return Agent(
        chat_generator=generator(url), tools=[half("left"), half("right")], system_prompt="Delegate."
    )


async def tasks(url, task):
    await make(url).run_async([ChatMessage.from_user(task)])


def threads(url, task):
    make(url).run([ChatMessage.from_user(task)])
