// The source of the page's data: the gateway that serves it.

const KEY_NAME = "autellix.key";
const MOST_EXPLAINED = 3;

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

  async post(path) {
    const response = await this.ask(path, "POST");
    return response.json();
  }

  async ask(path, method = "GET") {
    const headers = this.key ? { authorization: `Bearer ${this.key}` } : {};
    const response = await fetch(`v1/${path}`, { method, headers, cache: "no-store", credentials: "omit" });
    if (response.ok) return response;
    let message = `status ${response.status}`;
    try {
      message = (await response.json()).error.message;
    } catch {
      // An answer without an error object: the status must suffice.
    }
    throw new AnswerError(response.status, message);
  }

  overview(minutes) {
    return this.get(`overview?minutes=${minutes}`);
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

  // Has the gateway simulate the programs of the last minutes under other policies.
  replay(minutes) {
    return this.post(`replay?minutes=${minutes}`);
  }
}
