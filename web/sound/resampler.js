// Streaming sample-rate conversion: a windowed-sinc polyphase filter that carries its tail between pushes.
// How the sound is cut into pushes never changes a sample, and none is lost or doubled. No browser API in here.

const ZERO_CROSSINGS = 24; // on each side of the kernel, counted at the lower of the two rates
const KAISER_BETA = 9; // side lobes near -90 dB
const ROLL_OFF = 0.94; // the pass band ends here, as a share of the lower Nyquist frequency

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
  const taps = 2 * reach;
  const phases = new Array(up);
  for (let phase = 0; phase < up; phase += 1) {
    const kernel = new Float64Array(taps);
    let sum = 0;
    for (let tap = 0; tap < taps; tap += 1) {
      const distance = tap - (reach - 1) - phase / up; // input samples from the output's position
      const window = Math.abs(distance) >= reach
        ? 0
        : bessel0(KAISER_BETA * Math.sqrt(1 - (distance / reach) ** 2)) / bessel0(KAISER_BETA);
      const x = Math.PI * cutoff * distance;
      kernel[tap] = (x === 0 ? 1 : Math.sin(x) / x) * cutoff * window;
      sum += kernel[tap];
    }
    for (let tap = 0; tap < taps; tap += 1) kernel[tap] /= sum; // every phase passes DC unchanged
    phases[phase] = kernel;
  }
  return { phases, taps, reach };
}

export class Resampler {
  constructor(fromRate, toRate) {
    if (!(fromRate > 0) || !(toRate > 0)) throw new RangeError("sample rates must be above zero");
    const divisor = greatestCommonDivisor(Math.round(fromRate), Math.round(toRate));
    this.up = Math.round(toRate) / divisor;
    this.down = Math.round(fromRate) / divisor;
    this.received = 0; // input samples so far
    this.emitted = 0; // output samples so far
    if (this.up === this.down) return;
    Object.assign(this, kernelPhases(this.up, this.down));
    this.kept = new Float32Array(this.reach - 1); // silence before the first sample
    this.keptFrom = -(this.reach - 1); // position of kept[0] in the input
  }

  // Takes any number of input samples, returns the output samples that are now certain.
  push(samples) {
    this.received += samples.length;
    if (this.up === this.down) {
      this.emitted += samples.length;
      return samples.slice();
    }
    const joined = new Float32Array(this.kept.length + samples.length);
    joined.set(this.kept);
    joined.set(samples, this.kept.length);
    return this.convolve(joined, Infinity);
  }

  // The tail: after it exactly ceil(received * toRate / fromRate) samples have come out.
  finish() {
    if (this.up === this.down) return new Float32Array(0);
    const wanted = Math.ceil((this.received * this.up) / this.down);
    const joined = new Float32Array(this.kept.length + this.reach + 1);
    joined.set(this.kept);
    return this.convolve(joined, wanted);
  }

  convolve(input, wanted) {
    const { up, down, taps, reach, phases } = this;
    const end = this.keptFrom + input.length;
    const out = [];
    for (;;) {
      if (this.emitted >= wanted) break;
      const position = this.emitted * down; // in units of 1/up input samples
      const whole = Math.floor(position / up);
      const first = whole - (reach - 1);
      if (first + taps > end) break;
      const kernel = phases[position - whole * up];
      let sum = 0;
      const offset = first - this.keptFrom;
      for (let tap = 0; tap < taps; tap += 1) sum += kernel[tap] * input[offset + tap];
      out.push(sum);
      this.emitted += 1;
    }
    const nextFirst = Math.floor((this.emitted * down) / up) - (reach - 1);
    const keepFrom = Math.min(Math.max(nextFirst, this.keptFrom), end);
    this.kept = input.slice(keepFrom - this.keptFrom);
    this.keptFrom = keepFrom;
    return Float32Array.from(out);
  }
}

// Float samples in [-1, 1] as signed 16-bit little-endian numbers; louder sound is clipped, never wrapped.
export function toPcm16(samples) {
  const pcm = new Int16Array(samples.length);
  for (let i = 0; i < samples.length; i += 1) {
    const value = Math.max(-1, Math.min(1, samples[i]));
    pcm[i] = Math.round(value * 32767);
  }
  return pcm;
}
