// What the page keeps of the server's results, and what it writes into files.
import assert from "node:assert/strict";
import test from "node:test";
import { CUE, clock, cues, toJson, toSrt, toText, toVtt } from "../../web/session/export.js";
import { EMPTY, settled, shifted, afterRestart, withResults, wordsOf } from "../../web/session/transcript.js";

const results = (text, { startS = 0, final = true, speechFinal = false, channel = 0 } = {}) => ({
  type: "Results",
  channel_index: [channel, 1],
  start: startS,
  is_final: final,
  speech_final: speechFinal,
  channel: {
    alternatives: [{
      transcript: text,
      words: text.split(" ").filter(Boolean).map((word, i) => ({ word, start: startS + i * 0.3, end: startS + i * 0.3 + 0.25, confidence: 0.9 })),
    }],
  },
});
const texts = (transcript) => transcript.lines.map((line) => line.words.map((word) => word.text).join(" "));

test("partials replace each other, finals stay", () => {
  let heard = withResults(EMPTY, results("good", { final: false }));
  heard = withResults(heard, results("good morning", { final: false }));
  assert.equal(heard.partial.words.length, 2);
  assert.equal(heard.lines.length, 0);
  heard = withResults(heard, results("good morning", { speechFinal: true }));
  assert.equal(heard.partial, null);
  assert.deepEqual(texts(heard), ["good morning"]);
});

test("finals of one utterance make one line, the next utterance a new one", () => {
  let heard = withResults(EMPTY, results("one two"));
  heard = withResults(heard, results("three", { startS: 1, speechFinal: true }));
  heard = withResults(heard, results("four", { startS: 5 }));
  assert.deepEqual(texts(heard), ["one two three", "four"]);
});

test("an empty speech_final still ends its line", () => {
  let heard = withResults(EMPTY, results("one"));
  heard = withResults(heard, results("", { startS: 1, speechFinal: true }));
  heard = withResults(heard, results("two", { startS: 2 }));
  assert.deepEqual(texts(heard), ["one", "two"]);
});

test("an earlier transcript is never changed by a later result", () => {
  const first = withResults(EMPTY, results("one"));
  const copy = structuredClone(first);
  withResults(first, results("two", { startS: 1 }));
  assert.deepEqual(first, copy);
});

test("when the connection is gone, the unfinished words are kept and marked", () => {
  const heard = settled(withResults(withResults(EMPTY, results("one")), results("two", { startS: 1, final: false })));
  assert.deepEqual(texts(heard), ["one", "two"]);
  assert.equal(heard.lines[1].unsettled, true);
});

test("a second session goes on in time", () => {
  const heard = withResults(EMPTY, shifted(results("one", { startS: 1 }), 60));
  assert.equal(wordsOf(heard)[0].startS, 61);
});

test("a result without alternatives changes nothing", () => {
  assert.equal(withResults(EMPTY, { type: "Results", is_final: true, channel: { alternatives: [] } }), EMPTY);
});

test("cues: no word is split or lost, lines stay short, times go forward", () => {
  const words = Array.from({ length: 400 }, (_, i) => ({ text: "abcdefghij".slice(0, 1 + ((i * 7) % 10)), startS: i * 0.31, endS: i * 0.31 + 0.28, confidence: 1 }));
  const made = cues(words);
  assert.deepEqual(made.flatMap((cue) => cue.lines.join(" ").split(" ")), words.map((word) => word.text));
  for (const [i, cue] of made.entries()) {
    assert.ok(cue.lines.length <= CUE.lines);
    for (const line of cue.lines) assert.ok(line.length <= CUE.lineCharacters);
    assert.ok(cue.endS > cue.startS);
    assert.ok(cue.endS - cue.startS <= CUE.longestS);
    if (i) assert.ok(cue.startS >= made[i - 1].endS);
  }
});

test("cues break at pauses, and a short one stays up for a second", () => {
  const made = cues([{ text: "yes", startS: 1, endS: 1.2 }, { text: "no", startS: 4, endS: 4.2 }]);
  assert.deepEqual(made.map((cue) => [cue.startS, cue.endS]), [[1, 2], [4, 5]]);
});

test("a word longer than a line gets a line of its own", () => {
  const long = "x".repeat(60);
  assert.deepEqual(cues([{ text: "a", startS: 0, endS: 1 }, { text: long, startS: 1, endS: 2 }]).flatMap((cue) => cue.lines), ["a", long]);
});

test("file formats", () => {
  const heard = withResults(EMPTY, results("this <is> it", { startS: 3661.5, speechFinal: true }));
  assert.equal(toText(heard), "this <is> it\n");
  assert.equal(toSrt(heard), "1\n01:01:01,500 --> 01:01:02,500\nthis <is> it\n");
  assert.equal(toVtt(heard), "WEBVTT\n\n01:01:01.500 --> 01:01:02.500\nthis &lt;is&gt; it\n");
  const json = JSON.parse(toJson(heard));
  assert.equal(json.text, "this <is> it");
  assert.equal(json.segments[0].words[0].start, 3661.5);
  assert.equal(toText(EMPTY), "");
  assert.equal(toVtt(EMPTY), "WEBVTT\n");
});

test("clock rounds to milliseconds without a sixtieth second", () => {
  assert.equal(clock(59.9996, "."), "00:01:00.000");
});

test("a new session takes over: open words stay open, or stay as they stood where their sound is lost", () => {
  let heard = withResults(EMPTY, results("one two", { speechFinal: true }));
  heard = withResults(heard, results("three four five", { startS: 2, final: false }));
  assert.equal(afterRestart(heard, { fromS: 2, lostS: 0 }), heard);
  const cut = afterRestart(heard, { fromS: 2.5, lostS: 0.5 });
  assert.deepEqual(texts(cut), ["one two", "three four"]);
  assert.equal(cut.lines[1].unsettled, true);
  assert.equal(cut.partial, null);
  assert.deepEqual(afterRestart(heard, { fromS: 2, lostS: 1 }).lines.length, 1);
});
