// Requests to the server that this page came from; errors are its words.

export class Failed extends Error {}

let onTheWay = 0;

// The page says how many requests it waits for: to those who drive it.
function count(step) {
  onTheWay += step;
  document.documentElement.dataset.waiting = onTheWay;
}

export async function ask(path, options = {}) {
  return waitedFor(async () => {
    const response = await answerTo(path, options);
    return response.status === 204 ? null : response.json();
  });
}

export async function askPicture(path) {
  return waitedFor(async () => createImageBitmap(await (await answerTo(path, {})).blob()));
}

async function waitedFor(work) {
  count(1);
  try {
    return await work();
  } finally {
    count(-1);
  }
}

async function answerTo(path, options) {
  let response;
  try {
    response = await fetch(`/api/${path}`, options);
  } catch (error) {
    throw new Failed("the lab does not answer: was it stopped? Start it again with: gevit app");
  }
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({ error: `the lab answered with code ${response.status}` }));
  throw new Failed(error);
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
    for (let next = wish; next; next = this.waiting) {
      this.waiting = null;
      try {
        this.show(await this.send(next), next);
      } catch (error) {
        this.fail(error);
      }
    }
    this.busy = false;
  }

  drop() {
    this.waiting = null;
  }
}

export function bytes(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
