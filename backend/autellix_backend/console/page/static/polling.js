// Views that ask the gateway again and again while they are shown.

// Asking and drawing may take at most this share of the time.
const BUSY_SHARE = 0.1;
// Beyond it, values would look live and be old: a busy machine answers late.
const MOST_PAUSE_MS = 5000;

// Asks until the view is closed or its `refresh` returns false; never in a hidden tab.
export async function poll(view, leastMs) {
  while (!view.isClosed) {
    const begunMs = performance.now();
    if (!document.hidden && !(await view.refresh())) return;
    await pauseFor(Math.max(leastMs, Math.min(MOST_PAUSE_MS, (performance.now() - begunMs) / BUSY_SHARE)));
  }
}

export function pauseFor(milliseconds) {
  return new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
  });
}

// A browser's text about a failed connection is of no help.
export function noAnswer(error) {
  return error.status ? `The gateway cannot answer: ${error.message}` : "The gateway does not answer; the values shown are out of date";
}
