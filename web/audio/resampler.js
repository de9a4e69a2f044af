// Streaming sample-rate conversion with a Kaiser-windowed sinc polyphase filter that keeps its history between pushes.
// The output does not depend on how the input is split into pushes. No browser API.

const ZERO_CROSSINGS = 24; // per side of the kernel, at the lower of the two rates
const KAISER_BETA = 9; // side lobes near -90 dB
const ROLL_OFF = 0.94; // end of the pass band, as a fraction of the lower Nyquist frequency

function greatestCommonDivisor(a, b) {
  while (b) [a, b] = [b, a % b];
  return a;
}

// Modified Bessel function of the first kind, order zero, by its power series.
function bessel0(x) {
  let sum = 1;
  let term = 1;
  for (let k = 1; k < 60; k += 1) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
    if (term < sum * 1e-12) break;
  }
  return sum;
}

function kernelPhases(up, down) {
  const cutoff = Math.min(1, up / down) * ROLL_OFF; // relative to the input's Nyquist frequency
  const reach = Math.ceil(ZERO_CROSSINGS / Math.min(1, up / down)); // input samples on each side
  const kernelSize = 2 * reach;
  const phases = new Array(up);
  for (let phase = 0; phase < up; phase += 1) {
    const kernel = new Float64Array(kernelSize);
    let sum = 0;
    for (let i = 0; i < kernelSize; i += 1) {
      const distance = i - (reach - 1) - phase / up; // input samples from the output's position
      const window = Math.abs(distance) >= reach
        ? 0
        : bessel0(KAISER_BETA * Math.sqrt(1 - (distance / reach) ** 2)) / bessel0(KAISER_BETA);
      const x = Math.PI * cutoff * distance;
      kernel[i] = (x === 0 ? 1 : Math.sin(x) / x) * cutoff * window;
      sum += kernel[i];
    }
    for (let i = 0; i < kernelSize; i += 1) kernel[i] /= sum; // unit gain at DC in every phase
    phases[phase] = kernel;
  }
  return { phases, kernelSize, reach };
}

export class Resampler {
  constructor(fromRate, toRate) {
    if (!(fromRate > 0) || !(toRate > 0)) throw new RangeError("Sample rates must be positive.");
    const divisor = greatestCommonDivisor(Math.round(fromRate), Math.round(toRate));
    this.up = Math.round(toRate) / divisor;
    this.down = Math.round(fromRate) / divisor;
    this.received = 0; // input samples so far
    this.emitted = 0; // output samples so far
    if (this.up === this.down) return;
    Object.assign(this, kernelPhases(this.up, this.down));
    this.history = new Float32Array(this.reach - 1); // zeros before the first sample
    this.historyFrom = -(this.reach - 1); // position of history[0] in the input
  }

  // Takes any number of input samples, returns the output samples whose whole kernel is available.
  push(samples) {
    this.received += samples.length;
    if (this.up === this.down) {
      this.emitted += samples.length;
      return samples.slice();
    }
    const joined = new Float32Array(this.history.length + samples.length);
    joined.set(this.history);
    joined.set(samples, this.history.length);
    return this.convolve(joined, Infinity);
  }

  // The rest. In total exactly ceil(received * toRate / fromRate) samples are returned.
  finish() {
    if (this.up === this.down) return new Float32Array(0);
    const total = Math.ceil((this.received * this.up) / this.down);
    const joined = new Float32Array(this.history.length + this.reach + 1);
    joined.set(this.history);
    return this.convolve(joined, total);
  }

  convolve(input, total) {
    const { up, down, kernelSize, reach, phases } = this;
    const end = this.historyFrom + input.length;
    const out = [];
    for (;;) {
      if (this.emitted >= total) break;
      const position = this.emitted * down; // in units of 1/up input samples
      const sample = Math.floor(position / up);
      const first = sample - (reach - 1);
      if (first + kernelSize > end) break;
      const kernel = phases[position - sample * up];
      let sum = 0;
      const offset = first - this.historyFrom;
      for (let i = 0; i < kernelSize; i += 1) sum += kernel[i] * input[offset + i];
      out.push(sum);
      this.emitted += 1;
    }
    const nextFirst = Math.floor((this.emitted * down) / up) - (reach - 1);
    const keepFrom = Math.min(Math.max(nextFirst, this.historyFrom), end);
    this.history = input.slice(keepFrom - this.historyFrom);
    this.historyFrom = keepFrom;
    return Float32Array.from(out);
  }
}

// Converts float samples in [-1, 1] to signed 16-bit integers. Values out of range are clipped.
export function toPcm16(samples) {
  const pcm = new Int16Array(samples.length);
  for (let i = 0; i < samples.length; i += 1) {
    const value = Math.max(-1, Math.min(1, samples[i]));
    pcm[i] = Math.round(value * 32767);
  }
  return pcm;
}
