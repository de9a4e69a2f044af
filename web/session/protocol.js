// The wire protocol as plain values: request URLs out, server messages in. Opens no socket.
// The protocol is documented in docs/reference/protocol.md.

export const AUDIO_RATE = 16000;
export const BYTES_PER_SECOND = AUDIO_RATE * 2;
export const LIVE_AUDIO = { encoding: "linear16", sample_rate: AUDIO_RATE };
export const FILE_AUDIO = { source: "file" }; // the server detects the container from its first bytes
const MAX_HOTWORDS = 100;
const MAX_HOTWORD_LENGTH = 100;

export function secondsOf(bytes) {
  return bytes / BYTES_PER_SECOND;
}

// Splits user input at commas and line breaks. A phrase may end in `:weight`.
export function parseHotwords(text) {
  const phrases = text.split(/[\n,]/).map((phrase) => phrase.trim().replace(/\s+/g, " ")).filter(Boolean);
  return phrases.filter((phrase) => phrase.length <= MAX_HOTWORD_LENGTH).slice(0, MAX_HOTWORDS);
}

// The websocket URL of a session. `audio` describes the audio that will be sent, `resume` names a lost session.
export function listenUrl(base, { audio = LIVE_AUDIO, model = "", hotwords = [], smartFormat = false, resume = null } = {}) {
  const url = new URL("/v1/listen", base);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const query = url.searchParams;
  query.set("extensions", "true");
  query.set("interim_results", "true");
  for (const [name, value] of Object.entries(audio)) query.set(name, String(value));
  if (model) query.set("model", model);
  if (smartFormat) query.set("smart_format", "true");
  for (const phrase of hotwords) query.append("keyterm", phrase);
  if (resume) {
    query.set("resume", resume.id);
    query.set("after", String(resume.after));
  }
  return url.href;
}

// The URL for a whole file in one request.
export function fileUrl(base, { model = "", hotwords = [], smartFormat = false } = {}) {
  const url = new URL("/v1/listen", base);
  url.searchParams.set("utterances", "true");
  if (model) url.searchParams.set("model", model);
  if (smartFormat) url.searchParams.set("smart_format", "true");
  for (const phrase of hotwords) url.searchParams.append("keyterm", phrase);
  return url.href;
}

// Parses one text frame. Returns null for anything that is not a message object; callers ignore it.
export function parseMessage(text) {
  try {
    const message = JSON.parse(text);
    return message !== null && typeof message === "object" && typeof message.type === "string" ? message : null;
  } catch {
    return null;
  }
}
