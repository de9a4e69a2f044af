// What has been said: server results in, lines and words out. Values only: each change returns a new transcript.

export const EMPTY = Object.freeze({ lines: Object.freeze([]), partial: null });

// One server `Results` message (Deepgram's shape). A final never changes; a partial is replaced by the next one.
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
    return { lines: closedLast(transcript.lines, channel, message.speech_final), partial: null };
  }
  const last = transcript.lines.at(-1);
  const line = last && !last.closed && last.channel === channel
    ? { ...last, words: [...last.words, ...words], closed: Boolean(message.speech_final) }
    : { id: transcript.lines.length, channel, words, closed: Boolean(message.speech_final) };
  const before = line.id === last?.id ? transcript.lines.slice(0, -1) : transcript.lines;
  return { lines: [...before, line], partial: null };
}

function closedLast(lines, channel, speechFinal) {
  const last = lines.at(-1);
  if (!speechFinal || !last || last.closed || last.channel !== channel) return lines;
  return [...lines.slice(0, -1), { ...last, closed: true }];
}

// The same transcript with every line closed and the partial kept as a last line (the connection is gone for good).
export function settled(transcript) {
  const lines = transcript.lines.map((line) => (line.closed ? line : { ...line, closed: true }));
  const { partial } = transcript;
  if (partial?.words.length) {
    lines.push({ id: lines.length, channel: partial.channel, words: partial.words, closed: true, unsettled: true });
  }
  return { lines, partial: null };
}

export function wordsOf(transcript) {
  return transcript.lines.flatMap((line) => line.words);
}

// A new session took over and hears everything from `fromS` on (again). Where sound before that was lost, the words
// that were open in it stay as they stood; otherwise they stay open until the new session has heard them again.
export function afterRestart(transcript, { fromS, lostS }) {
  const { partial } = transcript;
  if (!lostS || !partial) return transcript;
  const words = partial.words.filter((word) => word.startS < fromS);
  return settled({ ...transcript, partial: words.length ? { ...partial, words } : null });
}

// A later session of the same recording: its times counted from the recording's first sound.
export function shifted(message, byS) {
  if (!byS) return message;
  const moved = { ...message };
  for (const name of ["start", "timestamp", "last_word_end", "received_s", "processed_s"]) {
    if (typeof message[name] === "number") moved[name] = message[name] + byS;
  }
  if (!message.channel?.alternatives) return moved;
  const alternatives = message.channel.alternatives.map((alternative) => ({
    ...alternative,
    words: (alternative.words ?? []).map((word) => ({ ...word, start: word.start + byS, end: word.end + byS })),
  }));
  return { ...moved, channel: { ...message.channel, alternatives } };
}
