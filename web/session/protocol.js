// The wire in both directions as plain values: addresses out, server messages in. Opens no socket.
// The protocol itself is written down in docs/reference/protocol.md.

export const AUDIO_RATE = 16000;
export const BYTES_PER_SECOND = AUDIO_RATE * 2;
export const LIVE_SOUND = { encoding: "linear16", sample_rate: AUDIO_RATE };
export const FILE_SOUND = { source: "file" }; // the server recognizes the container by its first bytes
const MAX_HOTWORDS = 100;
const MAX_HOTWORD_LENGTH = 100;

export function secondsOf(bytes) {
  return bytes / BYTES_PER_SECOND;
}

// Hotwords as a person types them: one a line or divided by commas, `phrase:weight` with an optional weight.
export function hotwordsOf(text) {
  const phrases = text.split(/[\n,]/).map((phrase) => phrase.trim().replace(/\s+/g, " ")).filter(Boolean);
  return phrases.filter((phrase) => phrase.length <= MAX_HOTWORD_LENGTH).slice(0, MAX_HOTWORDS);
}

// The address of a session. `sound` says what will be sent; `written` asks for capitals, punctuation and figures;
// `resume` takes up a lost session.
export function listenAddress(base, { sound = LIVE_SOUND, model = "", hotwords = [], written = false, resume = null } = {}) {
  const address = new URL("/v1/listen", base);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const query = address.searchParams;
  query.set("extensions", "true");
  query.set("interim_results", "true");
  for (const [name, value] of Object.entries(sound)) query.set(name, String(value));
  if (model) query.set("model", model);
  if (written) query.set("smart_format", "true");
  for (const phrase of hotwords) query.append("keyterm", phrase);
  if (resume) {
    query.set("resume", resume.id);
    query.set("after", String(resume.after));
  }
  return address.href;
}

// The address that a whole file is sent to in one request.
export function fileAddress(base, { model = "", hotwords = [], written = false } = {}) {
  const address = new URL("/v1/listen", base);
  address.searchParams.set("utterances", "true");
  if (model) address.searchParams.set("model", model);
  if (written) address.searchParams.set("smart_format", "true");
  for (const phrase of hotwords) address.searchParams.append("keyterm", phrase);
  return address.href;
}

// One text frame as an object, or null for what is no message of ours (unknown kinds are passed over, not errors).
export function parseMessage(text) {
  try {
    const message = JSON.parse(text);
    return message !== null && typeof message === "object" && typeof message.type === "string" ? message : null;
  } catch {
    return null;
  }
}
