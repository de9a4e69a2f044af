// The transcript as immutable values: takes server results, returns lines of words. No rendering, no network.

export const EMPTY_TRANSCRIPT = Object.freeze({ lines: Object.freeze([]), partial: null });

// Applies one `Results` message (Deepgram's format). Finals never change; each partial replaces the previous one.
export function withResults(transcript, message) {
  const alternative = message.channel?.alternatives?.[0];
  if (!alternative) return transcript;
  const channel = message.channel_index?.[0] ?? 0;
  const words = (alternative.words ?? []).map((word) => ({
    text: word.punctuated_word ?? word.word,
    startS: word.start,
    endS: word.end,
    confidence: word.confidence,
  }));
  if (!message.is_final) {
    return { ...transcript, partial: words.length ? { channel, words, stableWords: message.stable_words ?? 0 } : null };
  }
  if (!words.length) {
    return { lines: closeLastLine(transcript.lines, channel, message.speech_final), partial: null };
  }
  const last = transcript.lines.at(-1);
  const line = last && !last.closed && last.channel === channel
    ? { ...last, words: [...last.words, ...words], closed: Boolean(message.speech_final) }
    : { id: transcript.lines.length, channel, words, closed: Boolean(message.speech_final) };
  const before = line.id === last?.id ? transcript.lines.slice(0, -1) : transcript.lines;
  return { lines: [...before, line], partial: null };
}

function closeLastLine(lines, channel, speechFinal) {
  const last = lines.at(-1);
  if (!speechFinal || !last || last.closed || last.channel !== channel) return lines;
  return [...lines.slice(0, -1), { ...last, closed: true }];
}

// Closes every line and keeps the partial as a last line marked `interim`. For sessions that end without a final.
export function closeTranscript(transcript) {
  const lines = transcript.lines.map((line) => (line.closed ? line : { ...line, closed: true }));
  const { partial } = transcript;
  if (partial?.words.length) {
    lines.push({ id: lines.length, channel: partial.channel, words: partial.words, closed: true, interim: true });
  }
  return { lines, partial: null };
}

export function wordsOf(transcript) {
  return transcript.lines.flatMap((line) => line.words);
}

// Prepares the transcript for a replacement session that starts at `fromS`. If audio before `fromS` was lost, the
// partial's words in it are kept as an interim line; otherwise the new session transcribes them again.
export function afterRestart(transcript, { fromS, lostS }) {
  const { partial } = transcript;
  if (!lostS || !partial) return transcript;
  const words = partial.words.filter((word) => word.startS < fromS);
  return closeTranscript({ ...transcript, partial: words.length ? { ...partial, words } : null });
}

// Shifts the times of a message from a replacement session, so that they count from the start of the recording.
export function shiftTimes(message, byS) {
  if (!byS) return message;
  const shifted = { ...message };
  for (const name of ["start", "timestamp", "last_word_end", "received_s", "processed_s"]) {
    if (typeof message[name] === "number") shifted[name] = message[name] + byS;
  }
  if (!message.channel?.alternatives) return shifted;
  const alternatives = message.channel.alternatives.map((alternative) => ({
    ...alternative,
    words: (alternative.words ?? []).map((word) => ({ ...word, start: word.start + byS, end: word.end + byS })),
  }));
  return { ...shifted, channel: { ...message.channel, alternatives } };
}
