// The browser's resampler keeps every sample, whatever the cut, and neither colours nor folds the sound.
import assert from "node:assert/strict";
import test from "node:test";
import { Resampler, toPcm16 } from "../../web/sound/resampler.js";

const sine = (rate, hertz, samples) => Float32Array.from({ length: samples }, (_, i) => Math.sin((2 * Math.PI * hertz * i) / rate));

function whole(from, to, sound, sizes = [sound.length]) {
  const resampler = new Resampler(from, to);
  const parts = [];
  for (let at = 0, turn = 0; at < sound.length; turn += 1) {
    const size = Math.max(1, sizes[turn % sizes.length]);
    parts.push(...resampler.push(sound.subarray(at, at + size)));
    at += size;
  }
  parts.push(...resampler.finish());
  return Float32Array.from(parts);
}

for (const rate of [8000, 11025, 16000, 22050, 32000, 44100, 48000, 96000]) {
  test(`${rate} Hz: the count is exact and a tone keeps its place and size`, () => {
    const seconds = 0.5;
    const sound = sine(rate, 1000, rate * seconds + 7);
    const out = whole(rate, 16000, sound);
    assert.equal(out.length, Math.ceil((sound.length * 16000) / rate));
    const ideal = sine(16000, 1000, out.length);
    let worst = 0;
    for (let i = 200; i < out.length - 200; i += 1) worst = Math.max(worst, Math.abs(out[i] - ideal[i]));
    assert.ok(worst < 2e-3, `largest error ${worst}`);
  });

  test(`${rate} Hz: how the sound is cut changes no bit`, () => {
    const sound = Float32Array.from({ length: 4321 }, (_, i) => Math.sin(i * i * 1e-4) * 0.7);
    const once = whole(rate, 16000, sound);
    for (const sizes of [[128], [1], [7, 1000, 3, 128, 441]]) assert.deepEqual(whole(rate, 16000, sound, sizes), once);
  });
}

test("what 16 kHz cannot hold is silenced, not folded", () => {
  for (const rate of [44100, 48000]) {
    const out = whole(rate, 16000, sine(rate, 9500, rate / 2));
    const loudest = out.subarray(300, out.length - 300).reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    assert.ok(loudest < 1e-3, `${loudest} at ${rate} Hz`);
  }
});

test("nothing in, nothing out", () => {
  const resampler = new Resampler(44100, 16000);
  assert.equal(resampler.push(new Float32Array(0)).length + resampler.finish().length, 0);
});

test("a rate of zero is refused", () => {
  assert.throws(() => new Resampler(0, 16000), /above zero/);
});

test("sixteen bits: full scale, silence, and clipping instead of wrapping", () => {
  assert.deepEqual([...toPcm16(Float32Array.of(0, 1, -1, 1.5, -7))], [0, 32767, -32767, 32767, -32767]);
});
