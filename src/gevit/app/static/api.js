// Requests to the server that this page came from; errors are its words.

export class Failed extends Error {}

let onTheWay = 0;

// The page says how many requests it waits for: to those who drive it.
function count(step) {
  onTheWay += step;
  document.documentElement.dataset.waiting = onTheWay;
}

export async function ask(path, options = {}) {
  count(1);
  try {
    return await answerTo(path, options);
  } finally {
    count(-1);
  }
}

async function answerTo(path, options) {
  let response;
  try {
    response = await fetch(`/api/${path}`, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed("the lab does not answer: was it stopped? Start it again with: gevit app");
  }
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => ({ error: `the lab answered with code ${response.status}` }));
  if (!response.ok) throw Object.assign(new Failed(answer.error), { status: response.status });
  return answer;
}

export const query = (values) => new URLSearchParams(values).toString();

// While one request is on its way only the newest of those that follow is kept.
export class Newest {
  constructor(send, show, fail) {
    Object.assign(this, { send, show, fail, busy: false, waiting: null });
  }

  async request(wish) {
    if (this.busy) {
      this.waiting = wish;
      return;
    }
    this.busy = true;
    try {
      for (let next = wish; next; next = this.waiting) {
        this.waiting = null;
        const answer = await this.send(next);
        this.show(answer, next);
      }
    } catch (error) {
      this.waiting = null;
      this.fail(error);
    } finally {
      this.busy = false;
    }
  }
}

export function bytes(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
