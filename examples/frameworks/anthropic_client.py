"""The Anthropic client: `pip install anthropic git+https://github.com/autellix/autellix`."""

from anthropic import Anthropic

import autellix

client = Anthropic(base_url="http://127.0.0.1:8000", api_key="unused")
messages = []
with autellix.program("geographer"):
    for question in ("How many people live in Berlin?", "And in Paris?"):
        messages.append({"role": "user", "content": question})
        answer = client.messages.create(model="smollm2", messages=messages, max_tokens=64)
        messages.append({"role": "assistant", "content": answer.content})
        print(answer.content[0].text)
