// What official clients read of streams: a line of JSON with `url`, `path` and `body` on stdin gives one with
// the events, or with the name of the error.
import { createInterface } from "node:readline";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const options = { apiKey: "k", maxRetries: 0 };

async function begin({ url, path, body }) {
  if (path === "/v1/messages") return new Anthropic({ ...options, baseURL: url }).messages.create(body);
  const client = new OpenAI({ ...options, baseURL: `${url}/v1` });
  return path === "/v1/responses" ? client.responses.create(body) : client.chat.completions.create(body);
}

for await (const line of createInterface({ input: process.stdin })) {
  const read = [];
  try {
    for await (const event of await begin(JSON.parse(line))) read.push(event);
  } catch (error) {
    read.push(error.constructor.name);
  }
  console.log(JSON.stringify(read));
}
