// The wire in both directions as plain values: addresses out, server messages in. Opens no socket.

export const AUDIO_RATE = 16000;
const BYTES_PER_SECOND = AUDIO_RATE * 2;

export function secondsOf(bytes) {
  return bytes / BYTES_PER_SECOND;
}

// Hotwords as a person types them: one a line or divided by commas, `phrase:weight` with an optional weight.
export function hotwordsOf(text) {
  return text.split(/[\n,]/).map((phrase) => phrase.trim().replace(/\s+/g, " ")).filter(Boolean).slice(0, 100);
}

// The address of a live session. `extra` are query values that this kind of session adds.
export function listenAddress(base, { model = "", hotwords = [], endpointingMs = 300, extra = {} } = {}) {
  const address = new URL("/v1/listen", base);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const query = address.searchParams;
  query.set("model", model || "default");
  query.set("interim_results", "true");
  query.set("vad_events", "true");
  query.set("endpointing", String(endpointingMs));
  for (const phrase of hotwords) query.append("keyterm", phrase);
  for (const [name, value] of Object.entries(extra)) query.set(name, value);
  return address.href;
}

// One text frame as an object, or null for what is no message of ours (unknown kinds are passed over, not errors).
export function parsed(text) {
  try {
    const message = JSON.parse(text);
    return message !== null && typeof message === "object" && typeof message.type === "string" ? message : null;
  } catch {
    return null;
  }
}
