// Runs on the browser's audio thread: mixes to mono, resamples to 16 kHz, posts blocks of 16-bit audio with their level.
// After "stop" it posts the remaining samples and then `ended`.

import { Resampler, toPcm16 } from "./resampler.js";

const TARGET_RATE = 16000;
const BLOCK_SAMPLES = 640; // 40 ms

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = new Resampler(sampleRate, TARGET_RATE);
    this.block = new Float32Array(BLOCK_SAMPLES);
    this.filled = 0;
    this.running = true;
    this.expectedFrame = null;
    this.port.onmessage = ({ data }) => {
      if (data === "stop" && this.running) {
        this.running = false;
        this.append(this.resampler.finish());
        this.post();
        this.port.postMessage({ type: "ended", received: this.resampler.received, sent: this.resampler.emitted });
      }
    };
  }

  process([channels]) {
    if (!this.running) return false;
    if (!channels || channels.length === 0) return true;
    if (this.expectedFrame !== null && currentFrame > this.expectedFrame) {
      this.port.postMessage({ type: "gap", frames: currentFrame - this.expectedFrame });
    }
    this.expectedFrame = currentFrame + channels[0].length;
    this.append(this.resampler.push(mixToMono(channels)));
    return true;
  }

  append(samples) {
    let at = 0;
    while (at < samples.length) {
      const part = samples.subarray(at, at + BLOCK_SAMPLES - this.filled);
      this.block.set(part, this.filled);
      this.filled += part.length;
      at += part.length;
      if (this.filled === BLOCK_SAMPLES) this.post();
    }
  }

  post() {
    if (this.filled === 0) return;
    const samples = this.block.subarray(0, this.filled);
    let square = 0;
    let peak = 0;
    for (const value of samples) {
      square += value * value;
      peak = Math.max(peak, Math.abs(value));
    }
    const pcm = toPcm16(samples).buffer;
    const rms = Math.sqrt(square / samples.length);
    this.port.postMessage({ type: "audio", pcm, rms, peak }, [pcm]);
    this.filled = 0;
  }
}

function mixToMono(channels) {
  if (channels.length === 1) return channels[0];
  const mono = new Float32Array(channels[0].length);
  for (const channel of channels) for (let i = 0; i < mono.length; i += 1) mono[i] += channel[i] / channels.length;
  return mono;
}

registerProcessor("silica-capture", Capture);
