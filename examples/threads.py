"""A program that fans out over a thread pool and joins: three critics read a draft side by side."""

import os
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

import autellix

client = OpenAI(
    base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
)
MODEL = os.environ.get("MODEL", "smollm2")
CRITICS = ("style", "facts", "tone")


def ask(question):
    """Return the model's answer."""
    messages = [{"role": "user", "content": question}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=32)
    return answer.choices[0].message.content


with autellix.program("review"), ThreadPoolExecutor() as pool:
    draft = ask("Write about the sea.")
    notes = list(pool.map(ask, (f"Judge the {critic} of: {draft}" for critic in CRITICS)))
    print(ask(f"Rewrite by these notes: {notes}"))  # this call depends on all three
