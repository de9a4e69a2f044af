// The resampler: exact length, independence from how the input is split, frequency response, conversion to PCM.
import assert from "node:assert/strict";
import test from "node:test";
import { Resampler, toPcm16 } from "../../web/audio/resampler.js";

const sine = (rate, hertz, samples) => Float32Array.from({ length: samples }, (_, i) => Math.sin((2 * Math.PI * hertz * i) / rate));

function resample(from, to, input, sizes = [input.length]) {
  const resampler = new Resampler(from, to);
  const parts = [];
  for (let at = 0, turn = 0; at < input.length; turn += 1) {
    const size = Math.max(1, sizes[turn % sizes.length]);
    parts.push(...resampler.push(input.subarray(at, at + size)));
    at += size;
  }
  parts.push(...resampler.finish());
  return Float32Array.from(parts);
}

for (const rate of [8000, 11025, 16000, 22050, 32000, 44100, 48000, 96000]) {
  test(`${rate} Hz: the length is exact and a tone keeps its phase and amplitude`, () => {
    const seconds = 0.5;
    const input = sine(rate, 1000, rate * seconds + 7);
    const out = resample(rate, 16000, input);
    assert.equal(out.length, Math.ceil((input.length * 16000) / rate));
    const ideal = sine(16000, 1000, out.length);
    let maxError = 0;
    for (let i = 200; i < out.length - 200; i += 1) maxError = Math.max(maxError, Math.abs(out[i] - ideal[i]));
    assert.ok(maxError < 2e-3, `maximum error ${maxError}`);
  });

  test(`${rate} Hz: the output does not depend on how the input is split`, () => {
    const input = Float32Array.from({ length: 4321 }, (_, i) => Math.sin(i * i * 1e-4) * 0.7);
    const once = resample(rate, 16000, input);
    for (const sizes of [[128], [1], [7, 1000, 3, 128, 441]]) assert.deepEqual(resample(rate, 16000, input, sizes), once);
  });
}

test("frequencies above 8 kHz are removed without aliasing", () => {
  for (const rate of [44100, 48000]) {
    const out = resample(rate, 16000, sine(rate, 9500, rate / 2));
    const peak = out.subarray(300, out.length - 300).reduce((max, value) => Math.max(max, Math.abs(value)), 0);
    assert.ok(peak < 1e-3, `${peak} at ${rate} Hz`);
  }
});

test("no input gives no output", () => {
  const resampler = new Resampler(44100, 16000);
  assert.equal(resampler.push(new Float32Array(0)).length + resampler.finish().length, 0);
});

test("a sample rate of zero is an error", () => {
  assert.throws(() => new Resampler(0, 16000), /positive/);
});

test("16-bit PCM: silence, full scale, clipping", () => {
  assert.deepEqual([...toPcm16(Float32Array.of(0, 1, -1, 1.5, -7))], [0, 32767, -32767, 32767, -32767]);
});
