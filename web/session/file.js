// Transcribes one file. It is streamed in slices as fast as the server processes it, with results on the way. MP4 files
// may have their index at the end and cannot be decoded as a stream: they are sent in one request.

import { formatDuration } from "./export.js";
import { Failure, failureFromStatus } from "./failures.js";
import { LiveSession } from "./live-session.js";
import { FILE_AUDIO, fileUrl } from "./protocol.js";
import { EMPTY_TRANSCRIPT, closeTranscript, withResults } from "./transcript.js";

const MAX_UNSENT_BYTES = 1024 * 1024; // bytes buffered in the browser before the next slice is read
const REPLAY_BYTES = 64 * 1024 * 1024;
const POLL_MS = 20;

// on: {progress(fraction 0..1 or null, label), transcript(t)}. Resolves at the end; rejects with a Failure.
export async function transcribeFile(file, request) {
  if (!file.size) throw new Failure("empty-file");
  const boxType = new TextDecoder("latin1").decode(await file.slice(4, 8).arrayBuffer());
  return boxType === "ftyp" ? uploadFile(file, request) : streamFile(file, request);
}

async function streamFile(file, { base, key, options, signal, on }) {
  let transcript = EMPTY_TRANSCRIPT;
  let durationS = 0;
  let end;
  const ended = new Promise((resolve, reject) => { end = { resolve, reject }; });
  const session = new LiveSession({
    base,
    key,
    replayBytes: REPLAY_BYTES,
    options: { ...options, audio: FILE_AUDIO },
    on: {
      state(state) {
        if (state === "reconnecting") on.progress(null, "connection lost, reconnecting");
      },
      message(message) {
        if (message.type === "Results") {
          transcript = withResults(transcript, message);
          on.transcript(transcript);
        } else if (message.type === "Metadata") {
          durationS = message.duration;
        } else if (message.type === "Heartbeat" && file.size) {
          const processedFraction = message.received_s > 0 ? message.processed_s / message.received_s : 1;
          const fraction = Math.min(1, (message.received_bytes / file.size) * processedFraction);
          on.progress(fraction, `${Math.floor(fraction * 100)} %`);
        }
      },
      done: (failure) => (failure ? end.reject(failure) : end.resolve()),
    },
  });
  signal.addEventListener("abort", () => session.cancel());
  session.start();
  try {
    await Promise.race([ended, sendSlices(file, session)]);
    await ended;
  } finally {
    session.cancel();
    on.transcript(closeTranscript(transcript));
  }
  if (signal.aborted) throw new Failure("server", "cancelled");
  on.progress(1, durationS ? formatDuration(durationS) : "");
}

async function sendSlices(file, session) {
  let at = 0;
  while (at < file.size) {
    while (session.unsentBytes > MAX_UNSENT_BYTES) {
      if (session.state === "closed") return;
      await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
    }
    const slice = file.slice(at, at + session.messageBytes);
    session.send(await slice.arrayBuffer());
    at += slice.size;
  }
  session.finish();
}

async function uploadFile(file, { base, key, options, signal, on }) {
  const request = new XMLHttpRequest(); // fetch does not report upload progress
  request.open("POST", fileUrl(base, options));
  request.setRequestHeader("Content-Type", "application/octet-stream");
  if (key) request.setRequestHeader("Authorization", `Token ${key}`);
  request.upload.onprogress = ({ loaded, total }) => {
    const sent = total ? loaded / total : 0;
    on.progress(sent / 2, loaded < total ? `uploading, ${Math.floor(sent * 100)} %` : "transcribing");
  };
  signal.addEventListener("abort", () => request.abort());
  await new Promise((resolve, reject) => {
    request.onload = resolve;
    request.onerror = () => reject(new Failure("unreachable"));
    request.onabort = () => reject(new Failure("server", "cancelled"));
    request.send(file);
  });
  const response = parseResponse(request.responseText);
  if (request.status !== 200) {
    const detail = `${response.err_msg ?? ""} ${response.advice ?? ""}`.trim();
    throw failureFromStatus(request.status, detail || request.statusText);
  }
  let transcript = EMPTY_TRANSCRIPT;
  for (const { start, end, words } of response.results.utterances) {
    const channel = { alternatives: [{ words }] };
    transcript = withResults(transcript, { start, duration: end - start, is_final: true, speech_final: true, channel });
  }
  on.transcript(transcript);
  on.progress(1, formatDuration(response.metadata.duration));
}

// A proxy may refuse the request with a body that is not JSON.
function parseResponse(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}
