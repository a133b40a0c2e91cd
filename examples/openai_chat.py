"""One agent task of three calls, with the plain OpenAI client."""

import os

from openai import OpenAI

import autellix

client = OpenAI(
    base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
)
MODEL = os.environ.get("MODEL", "smollm2")

messages = [{"role": "system", "content": "You are a research assistant. Answer briefly."}]
with autellix.program("research"):
    for step in ("Plan how to find where swallows winter.", "Carry out the plan.", "Answer in one line."):
        messages.append({"role": "user", "content": step})
        answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=32)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        print(step, "->", answer.choices[0].message.content)
        print("  receipt:", (answer.model_extra or {}).get("autellix"))
