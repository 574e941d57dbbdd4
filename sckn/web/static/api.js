// The server's JSON API; every failure is an Error whose message is a sentence for the visitor.

const UNREACHABLE = "The server cannot be reached. Is it still running?";

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(UNREACHABLE);
  }
  if (!answer.ok) {
    const { detail } = await answer.json().catch(() => ({}));
    throw new Error(sentence(detail || `the server answered with status ${answer.status}`));
  }
  return answer;
}

/** With a capital letter and a full stop, as on the page all sentences have. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

export async function info() {
  return (await ask("/api/info")).json();
}

export async function startJob(photo, settings, signal) {
  const body = new FormData();
  body.append("photo", photo);
  for (const [name, value] of Object.entries(settings)) body.append(name, value);
  return (await ask("/api/jobs", { method: "POST", body, signal })).json();
}

export async function fetchResult(id, signal) {
  return (await ask(`/api/jobs/${id}/result`, { signal })).blob();
}

/** Also on the way out of the page. */
export function deleteJob(id) {
  return fetch(`/api/jobs/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
}

export async function classify(image, signal) {
  const body = new FormData();
  body.append("image", image);
  return (await ask("/api/classify", { method: "POST", body, signal })).json();
}

/** Calls `onChange` with the status of a job until it has ended; the last status is the answer. */
export function watchJob(id, onChange, signal) {
  return new Promise((resolve, reject) => {
    const events = new EventSource(`/api/jobs/${id}/events`);
    const end = (settle, value) => {
      events.close();
      settle(value);
    };
    signal.addEventListener("abort", () => end(reject, signal.reason));
    events.onmessage = ({ data }) => {
      const status = JSON.parse(data);
      onChange(status);
      if (status.state === "done") end(resolve, status);
      if (status.state === "failed") end(reject, new Error(sentence(status.problem)));
    };
    events.onerror = () => {
      // the browser tries again by itself, unless the server has said that there is nothing to watch
      if (events.readyState === EventSource.CLOSED) end(reject, new Error(UNREACHABLE));
    };
  });
}
