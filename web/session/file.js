// One file through the server: sent in slices as fast as it is heard, words coming back meanwhile. MP4 files may have
// their index at the end and cannot be heard from a stream: they are sent whole.

import { minutes } from "./export.js";
import { Failure, failureFromStatus } from "./failures.js";
import { LiveSession } from "./listen.js";
import { FILE_SOUND, fileAddress } from "./protocol.js";
import { EMPTY, settled, withResults } from "./transcript.js";

const AHEAD_BYTES = 1024 * 1024; // bytes waiting in the browser before the next slice is read
const KEPT_BYTES = 64 * 1024 * 1024; // sent and not yet confirmed
const POLL_MS = 20;

// on: {progress(share 0..1, words), transcript(t)}. Resolves at the end; rejects with a Failure.
export async function transcribeFile(file, how) {
  if (!file.size) throw new Failure("empty-file");
  const kind = new TextDecoder("latin1").decode(await file.slice(4, 8).arrayBuffer());
  return kind === "ftyp" ? sendWhole(file, how) : sendStreamed(file, how);
}

async function sendStreamed(file, { base, key, options, signal, on }) {
  let transcript = EMPTY;
  let lengthS = 0;
  let settle;
  const ended = new Promise((resolve, reject) => { settle = { resolve, reject }; });
  const session = new LiveSession({
    base,
    key,
    keptBytes: KEPT_BYTES,
    options: { ...options, sound: FILE_SOUND },
    on: {
      state(state) {
        if (state === "reconnecting") on.progress(null, "connection lost, coming back");
      },
      message(message) {
        if (message.type === "Results") {
          transcript = withResults(transcript, message);
          on.transcript(transcript);
        } else if (message.type === "Metadata") {
          lengthS = message.duration;
        } else if (message.type === "Heartbeat" && file.size) {
          const processedShare = message.received_s > 0 ? message.processed_s / message.received_s : 1;
          const share = Math.min(1, (message.received_bytes / file.size) * processedShare);
          on.progress(share, `${Math.floor(share * 100)} %`);
        }
      },
      done: (failure) => (failure ? settle.reject(failure) : settle.resolve()),
    },
  });
  signal.addEventListener("abort", () => session.cancel());
  session.start();
  try {
    await Promise.race([ended, send(file, session)]);
    await ended;
  } finally {
    session.cancel();
    on.transcript(settled(transcript));
  }
  if (signal.aborted) throw new Failure("server", "cancelled");
  on.progress(1, lengthS ? minutes(lengthS) : "");
}

async function send(file, session) {
  let at = 0;
  while (at < file.size) {
    while (session.unsentBytes > AHEAD_BYTES) {
      if (session.state === "closed") return;
      await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
    }
    const slice = file.slice(at, at + session.messageBytes);
    session.send(await slice.arrayBuffer());
    at += slice.size;
  }
  session.finish();
}

async function sendWhole(file, { base, key, options, signal, on }) {
  const request = new XMLHttpRequest(); // fetch tells nothing of how far an upload is
  request.open("POST", fileAddress(base, options));
  request.setRequestHeader("Content-Type", "application/octet-stream");
  if (key) request.setRequestHeader("Authorization", `Token ${key}`);
  request.upload.onprogress = ({ loaded, total }) => {
    const share = total ? loaded / total : 0;
    on.progress(share / 2, loaded < total ? `sending, ${Math.floor(share * 100)} %` : "hearing");
  };
  signal.addEventListener("abort", () => request.abort());
  await new Promise((resolve, reject) => {
    request.onload = resolve;
    request.onerror = () => reject(new Failure("unreachable"));
    request.onabort = () => reject(new Failure("server", "cancelled"));
    request.send(file);
  });
  const answer = answered(request.responseText);
  if (request.status !== 200) {
    const said = `${answer.err_msg ?? ""} ${answer.advice ?? ""}`.trim();
    throw failureFromStatus(request.status, said || request.statusText);
  }
  let transcript = EMPTY;
  for (const { start, end, words } of answer.results.utterances) {
    const channel = { alternatives: [{ words }] };
    transcript = withResults(transcript, { start, duration: end - start, is_final: true, speech_final: true, channel });
  }
  on.transcript(transcript);
  on.progress(1, minutes(answer.metadata.duration));
}

// A proxy between may refuse in words of its own.
function answered(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}
