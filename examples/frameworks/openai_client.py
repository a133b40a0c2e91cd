"""The OpenAI client: `pip install openai git+https://github.com/autellix/autellix`."""

from openai import OpenAI

import autellix

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="unused")
messages = []
with autellix.program("geographer"):
    for question in ("How many people live in Berlin?", "And in Paris?"):
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="smollm2", messages=messages)
        messages.append(answer.choices[0].message)
        print(answer.choices[0].message.content)
