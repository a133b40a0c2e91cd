// The source of the page's data: the gateway that serves it.

const KEY_NAME = "autellix.key";
const MOST_EXPLAINED = 8;

export class AnswerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class GatewaySource {
  get key() {
    return sessionStorage.getItem(KEY_NAME);
  }

  set key(value) {
    if (value) sessionStorage.setItem(KEY_NAME, value);
    else sessionStorage.removeItem(KEY_NAME);
  }

  async get(path) {
    const response = await this.ask(path);
    return response.json();
  }

  async ask(path, signal) {
    const headers = this.key ? { authorization: `Bearer ${this.key}` } : {};
    const response = await fetch(`v1/${path}`, { headers, signal, cache: "no-store", credentials: "omit" });
    if (response.ok) return response;
    let message = `status ${response.status}`;
    try {
      message = (await response.json()).error.message;
    } catch {
      // An answer without an error object: the status must suffice.
    }
    throw new AnswerError(response.status, message);
  }

  engines() {
    return this.get("engines");
  }

  // The living programs, up to a limit.
  programs(most) {
    return this.listing("programs", most);
  }

  ended(most) {
    return this.listing("history", most);
  }

  async listing(path, most) {
    const rows = [];
    let after = null;
    do {
      const from = after === null ? "" : `&after=${encodeURIComponent(after)}`;
      const page = await this.get(`${path}?limit=${Math.min(1000, most - rows.length)}${from}`);
      rows.push(...page.programs);
      after = page.next;
    } while (after !== null && rows.length < most);
    return { programs: rows, hasMore: after !== null };
  }

  timeline(programId) {
    return this.get(`programs/${encodeURIComponent(programId)}/timeline`);
  }

  async why(programId) {
    const answer = await this.get(`programs/${encodeURIComponent(programId)}/why`);
    const calls = answer.calls.slice(0, MOST_EXPLAINED);
    return { text: answer.text, calls, more: answer.calls.length - calls.length };
  }

  // Reads the event feed until it ends; raises when it cannot be read.
  async follow(onEvents, onOpen, signal) {
    const response = await this.ask("events", signal);
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    onOpen();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      const events = blocks.map(readEvent).filter((event) => event !== null);
      if (events.length) onEvents(events);
    }
  }
}

export function readEvent(block) {
  const lines = block.split("\n");
  const kind = lines.find((line) => line.startsWith("event: "));
  const data = lines.find((line) => line.startsWith("data: "));
  return kind && data ? { ...JSON.parse(data.slice(6)), kind: kind.slice(7) } : null;
}
