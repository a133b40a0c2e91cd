// One task of one library, as an agent loop with one tool: node clients.mjs LIBRARY BASE_URL PROMPT
const [library, root, prompt] = process.argv.slice(2);
const baseURL = `${root}/v1`;
const apiKey = "dummy";
const model = "scripted";
const MAX_TURNS = 12;
const parameters = {
  type: "object",
  properties: { command: { type: "string" } },
  required: ["command"],
};
const described = { name: "bash", description: "Run a command." };
const output = "3 notes.txt";

async function openai() {
  const { default: OpenAI } = await import("openai");
  return new OpenAI({ baseURL, apiKey });
}

async function chat() {
  const client = await openai();
  const messages = [{ role: "user", content: prompt }];
  const tools = [{ type: "function", function: { ...described, parameters } }];
  for (let turn = 0; turn < MAX_TURNS; turn++) {
    const answer = await client.chat.completions.create({ model, messages, tools });
    const { message } = answer.choices[0];
    messages.push(message);
    if (!message.tool_calls) return message.content;
    for (const call of message.tool_calls)
      messages.push({ role: "tool", tool_call_id: call.id, content: output });
  }
}

async function responses(keepsHistory) {
  const client = await openai();
  const tools = [{ type: "function", ...described, parameters }];
  let input = [{ role: "user", content: prompt }];
  let previous_response_id;
  for (let turn = 0; turn < MAX_TURNS; turn++) {
    const answer = await client.responses.create({ model, input, tools, previous_response_id });
    const calls = answer.output.filter((item) => item.type === "function_call");
    if (!calls.length) return answer.output_text;
    const results = calls.map(({ call_id }) => ({ type: "function_call_output", call_id, output }));
    if (keepsHistory) [input, previous_response_id] = [results, answer.id];
    else input = [...input, ...answer.output, ...results];
  }
}

async function messages() {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: root, apiKey });
  const messages = [{ role: "user", content: prompt }];
  const tools = [{ ...described, input_schema: parameters }];
  for (let turn = 0; turn < MAX_TURNS; turn++) {
    const { content } = await client.messages.create({ model, max_tokens: 500, messages, tools });
    messages.push({ role: "assistant", content });
    const calls = content.filter((block) => block.type === "tool_use");
    if (!calls.length) return content[0].text;
    const results = calls.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: output }));
    messages.push({ role: "user", content: results });
  }
}

async function vercel(provider) {
  const { generateText, jsonSchema, stepCountIs, tool } = await import("ai");
  const bash = tool({
    description: described.description,
    inputSchema: jsonSchema(parameters),
    execute: async () => output,
  });
  const { text } = await generateText({
    model: provider(model),
    prompt,
    tools: { bash },
    stopWhen: stepCountIs(MAX_TURNS),
  });
  return text;
}

async function langgraph(useResponsesApi) {
  const { ChatOpenAI } = await import("@langchain/openai");
  const { createReactAgent } = await import("@langchain/langgraph/prebuilt");
  const { tool } = await import("@langchain/core/tools");
  const { z } = await import("zod");
  const schema = z.object({ command: z.string() });
  const llm = new ChatOpenAI({ model, apiKey, useResponsesApi, configuration: { baseURL } });
  const agent = createReactAgent({ llm, tools: [tool(async () => output, { ...described, schema })] });
  const state = await agent.invoke({ messages: [{ role: "user", content: prompt }] });
  return state.messages.at(-1).text;
}

const libraries = {
  "openai-chat": chat,
  "openai-responses": () => responses(false),
  "openai-previous-response": () => responses(true),
  anthropic: messages,
  "ai-chat": async () => {
    const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
    return vercel(createOpenAICompatible({ name: "gateway", baseURL, apiKey }));
  },
  "ai-responses": async () => {
    const { createOpenAI } = await import("@ai-sdk/openai");
    return vercel(createOpenAI({ baseURL, apiKey }));
  },
  "ai-messages": async () => {
    const { createAnthropic } = await import("@ai-sdk/anthropic");
    return vercel(createAnthropic({ baseURL, apiKey }));
  },
  "langgraph-chat": () => langgraph(false),
  "langgraph-responses": () => langgraph(true),
};
console.log(await libraries[library]());
