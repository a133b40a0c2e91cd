"""A streamed answer, and a call that uses it: the stream belongs to the program while it is read."""

import os

from openai import OpenAI

import autellix

client = OpenAI(
    base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
)
MODEL = os.environ.get("MODEL", "smollm2")


def stream(question):
    """Print the answer as it comes, and return it."""
    parts = []
    messages = [{"role": "user", "content": question}]
    for event in client.chat.completions.create(model=MODEL, messages=messages, max_tokens=48, stream=True):
        part = event.choices[0].delta.content or "" if event.choices else ""
        print(part, end="", flush=True)
        parts.append(part)
    print()
    return "".join(parts)


with autellix.program("story"):
    draft = stream("Write one sentence about the sea.")
    stream(f"Shorten this: {draft}")
