// The server's JSON API; every failure is an Error whose message is a sentence for the visitor.

const UNREACHABLE = "The server cannot be reached. Is it still running?";

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : Object.assign(new Error(UNREACHABLE), { passing: true });
  }
  if (!answer.ok) {
    const { detail } = await answer.json().catch(() => ({}));
    const problem = new Error(sentence(detail || `the server answered with status ${answer.status}`));
    throw Object.assign(problem, { passing: answer.status >= 500 }); // it may be over in a moment
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

export async function askStatus(id, signal) {
  return (await ask(`/api/jobs/${id}`, { signal })).json();
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
