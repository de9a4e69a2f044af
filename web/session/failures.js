// Every way in which speaking to the page can fail, in words for the person in front of it. No browser API in here.

const WORDS = {
  permission: ["The microphone is switched off for this page.",
    "Allow it with the icon beside the address, then press the button again."],
  "no-device": ["No microphone was found.", "Plug one in, or pick another under Settings, then press the button again."],
  "device-busy": ["The microphone could not be opened.", "Another program may be holding it. Close that one and try again."],
  "device-lost": ["The microphone went away.", "What was said until then is kept. Plug it in and press the button again."],
  insecure: ["This address may not use the microphone.",
    "Browsers allow it only over https, or on localhost. Files can still be dropped here."],
  unsupported: ["This browser cannot capture sound for the page.", "A current Firefox, Chrome, Edge or Safari can."],
  capacity: ["The server is full right now.", "Nothing was recorded. Try again in a moment."],
  key: ["The server wants a key.", "Put it under Settings; it stays in this tab only."],
  draining: ["The server is starting, or being restarted.", "What was said until then is kept. Try again in a moment."],
  idle: ["The server heard nothing for a while and ended the session.", "Press the button to go on."],
  network: ["The connection to the server is gone.",
    "The words until then stay; what was said since is lost. Check the network and press the button again."],
  unreachable: ["The server cannot be reached.", "Check the network, or whether the server runs, then try again."],
  "begun-anew": ["The server had lost this session.",
    "A new one goes on by itself. Nothing that was said is missing; its last words are being heard again."],
  "begun-with-gap": ["The connection came back too late to go on where it stopped.",
    "A new session goes on by itself. What was said in between is missing."],
  "full-again": ["The server lost this session and is full now.",
    "What was said until then is kept. Press the button again in a moment."],
  "resume-lost": ["The connection came back too late to go on where it stopped.",
    "What was said until then is kept; words in between may be missing."],
  "too-large": ["This file is larger than the server takes.", "Compress it, as Opus or MP3, or split it."],
  "empty-file": ["This file is empty.", "Nothing was recorded in it, or it was not copied whole."],
  "bad-audio": ["The server could not read this sound.", "Ogg, WebM, FLAC, MP3, WAV and MP4 are read, also the sound of a film; is the file complete?"],
  server: ["The server reported a failure.", "What was said until then is kept. Press the button to go on."],
};

export class Failure extends Error {
  constructor(code, detail = "") {
    const known = WORDS[code] ? code : "server";
    super(WORDS[known][0]);
    this.code = known;
    this.advice = WORDS[known][1];
    this.detail = detail; // the server's or the browser's own words
  }
}

// The server's error codes (docs/reference/protocol.md) as ours.
const SERVER_CODES = {
  capacity: "capacity", draining: "draining", idle: "idle", key: "key", audio: "bad-audio", containers: "capacity",
  "DATA-0000": "bad-audio", "DATA-0001": "bad-audio", "KEY-0000": "key", "NET-0001": "idle", "SLOW-0000": "network",
  DRAINING: "draining", resume: "resume-lost",
};

export function failureFromCode(code, detail = "") {
  return new Failure(SERVER_CODES[code] ?? "server", detail);
}

// A refused HTTP request as a Failure.
export function failureFromStatus(status, detail = "") {
  if (status === 401 || status === 403) return new Failure("key", detail);
  if (status === 429 || status === 503) return new Failure("capacity", detail);
  if (status === 413) return new Failure("too-large", detail);
  if (status === 400) return new Failure("bad-audio", detail);
  if (status === 0) return new Failure("unreachable", detail);
  return new Failure("server", detail);
}

// A websocket close as a Failure, or null for a normal end.
export function failureFromClose(code, reason = "") {
  if (code === 1000) return null;
  const said = reason.match(/^[A-Z]+(-\d+)?/)?.[0];
  if (said && SERVER_CODES[said]) return new Failure(SERVER_CODES[said], reason);
  if (code === 1012) return new Failure("draining", reason);
  if (code === 1013) return new Failure("capacity", reason);
  if (code === 1001 || code === 1005 || code === 1006) return new Failure("network", reason);
  return new Failure("server", reason);
}
