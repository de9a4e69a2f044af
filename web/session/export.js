// A transcript as a file: text, SubRip, WebVTT, JSON. Cues break at pauses and never inside a word.

export const CUE = { lineCharacters: 42, lines: 2, longestS: 6, shortestS: 1, pauseS: 0.6 };

// Words to cues {startS, endS, lines[]}: a new cue at a pause, when two lines are full, or after six seconds.
export function cues(words) {
  const found = [];
  let open = [];
  const close = () => {
    if (open.length) found.push({ startS: open[0].startS, endS: open.at(-1).endS, lines: balanced(open) });
    open = [];
  };
  for (const word of words) {
    const previous = open.at(-1);
    if (previous) {
      const full = wrapped([...open, word]).length > CUE.lines;
      if (word.startS - previous.endS >= CUE.pauseS || word.endS - open[0].startS > CUE.longestS || full) close();
    }
    open.push(word);
  }
  close();
  return found.map((cue, index) => {
    // A flash of text cannot be read: short cues stay up, but never into the next one.
    const next = found[index + 1];
    const wished = Math.max(cue.endS, cue.startS + CUE.shortestS);
    return { ...cue, endS: next ? Math.max(cue.endS, Math.min(wished, next.startS)) : wished };
  });
}

// As few lines as needed, as equal as words allow: a lone last word is hard to read.
function balanced(words) {
  const wanted = wrapped(words).length;
  const whole = words.map((word) => word.text).join(" ").length;
  const longest = Math.max(...words.map((word) => word.text.length));
  for (let width = Math.max(longest, Math.floor(whole / wanted)); width < CUE.lineCharacters; width += 1) {
    const lines = wrapped(words, width);
    if (lines.length <= wanted) return lines;
  }
  return wrapped(words);
}

function wrapped(words, width = CUE.lineCharacters) {
  const lines = [""];
  for (const { text } of words) {
    const line = lines.at(-1);
    if (line && line.length + 1 + text.length > width) lines.push(text);
    else lines[lines.length - 1] = line ? `${line} ${text}` : text;
  }
  return lines;
}

export function clock(seconds, mark) {
  const total = Math.max(0, Math.round(seconds * 1000));
  const pad = (value, digits) => String(value).padStart(digits, "0");
  const hours = pad(Math.floor(total / 3600000), 2);
  const minutes = pad(Math.floor(total / 60000) % 60, 2);
  return `${hours}:${minutes}:${pad(Math.floor(total / 1000) % 60, 2)}${mark}${pad(total % 1000, 3)}`;
}

// As people write it: 0:07, 1:02:03.
export function minutes(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const parts = [Math.floor(whole / 60) % 60, whole % 60].map((part) => String(part).padStart(2, "0"));
  const hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${parts.join(":")}` : `${Number(parts[0])}:${parts[1]}`;
}

export function toText(transcript) {
  return transcript.lines.map((line) => `${line.words.map((word) => word.text).join(" ")}\n`).join("");
}

export function toSrt(transcript) {
  return allCues(transcript)
    .map((cue, i) => `${i + 1}\n${clock(cue.startS, ",")} --> ${clock(cue.endS, ",")}\n${cue.lines.join("\n")}\n`)
    .join("\n");
}

export function toVtt(transcript) {
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const body = allCues(transcript)
    .map((cue) => `${clock(cue.startS, ".")} --> ${clock(cue.endS, ".")}\n${cue.lines.map(escaped).join("\n")}\n`);
  return ["WEBVTT\n", ...body].join("\n");
}

export function toJson(transcript) {
  const segments = transcript.lines.map((line) => ({
    start: line.words[0].startS,
    end: line.words.at(-1).endS,
    channel: line.channel,
    text: line.words.map((word) => word.text).join(" "),
    words: line.words.map(({ text, startS, endS, confidence }) => ({ word: text, start: startS, end: endS, confidence })),
  }));
  return `${JSON.stringify({ text: segments.map((segment) => segment.text).join(" "), segments }, null, 2)}\n`;
}

function allCues(transcript) {
  return cues(transcript.lines.flatMap((line) => line.words));
}

export const FORMATS = {
  txt: { type: "text/plain", write: toText },
  srt: { type: "application/x-subrip", write: toSrt },
  vtt: { type: "text/vtt", write: toVtt },
  json: { type: "application/json", write: toJson },
};
