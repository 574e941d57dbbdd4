// Watching a job through its events, and through breaks of the connection.

import { askStatus, sentence } from "./api.js";

const tooLong = (patience) =>
  `The connection was lost for more than ${patience} seconds, after which the server stops the work. ` +
  "Start again once it can be reached.";
const RETRY = 1_000; // milliseconds between two attempts to come back
const ANSWER = 5_000; // within which the server tells the status, if it can be reached
const SILENCE = 15_000; // without an event, of which there is one every 5 seconds, the connection is lost

/**
 * Calls `onChange` with the status of a job until it has ended; the last status is the answer. While the server cannot be
 * reached `onLost` is called, and after `patience` seconds, when the server has given up as well, the watch ends.
 */
export function watchJob(id, { onChange, onLost, patience }, signal) {
  return new Promise((resolve, reject) => {
    let events, timer, lostSince;

    const end = (settle, value) => {
      events?.close();
      clearTimeout(timer);
      signal.removeEventListener("abort", abort);
      settle(value);
    };
    const abort = () => end(reject, signal.reason);
    const see = (status) => {
      lostSince = undefined;
      clearTimeout(timer);
      onChange(status);
      if (status.state === "done") end(resolve, status);
      else if (status.state === "failed") end(reject, new Error(sentence(status.problem)));
      else timer = setTimeout(lose, SILENCE);
    };
    const connect = () => {
      events = new EventSource(`/api/jobs/${id}/events`);
      events.onmessage = ({ data }) => see(JSON.parse(data));
      events.onerror = lose;
      timer = setTimeout(lose, SILENCE);
    };
    const lose = () => {
      events.close();
      clearTimeout(timer);
      if (lostSince === undefined) {
        lostSince = performance.now();
        onLost();
      }
      timer = setTimeout(comeBack, RETRY);
    };
    // The status tells what events cannot: why there are none.
    const comeBack = async () => {
      try {
        const status = await askStatus(id, AbortSignal.any([signal, AbortSignal.timeout(ANSWER)]));
        see(status);
        if (status.state !== "done" && status.state !== "failed") {
          clearTimeout(timer);
          connect();
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error.passing && performance.now() - lostSince < 1000 * patience) timer = setTimeout(comeBack, RETRY);
        else end(reject, error.passing ? new Error(tooLong(patience)) : error);
      }
    };

    signal.addEventListener("abort", abort);
    if (signal.aborted) abort();
    else connect();
  });
}
