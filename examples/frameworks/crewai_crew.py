"""CrewAI: `pip install crewai litellm git+https://github.com/autellix/autellix`."""

from crewai import LLM, Agent, Crew, Task

import autellix  # the only line to add

llm = LLM(model="openai/smollm2", base_url="http://127.0.0.1:8000/v1", api_key="unused")
writer = Agent(role="writer", goal="Write clearly", backstory="An author", llm=llm)
plan = Task(description="Plan a text about the sea.", expected_output="a plan", agent=writer)
write = Task(description="Write it.", expected_output="a text", agent=writer, context=[plan])
print(Crew(name="essay", agents=[writer], tasks=[plan, write]).kickoff())
