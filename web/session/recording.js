// One recording: microphone and live session joined, with the figures that people see while they speak.
// Keeps the transcript; draws nothing.

import { openMicrophone } from "../sound/capture.js";
import { Failure } from "./failures.js";
import { LiveSession } from "./listen.js";
import { BYTES_PER_SECOND, secondsOf } from "./protocol.js";
import { EMPTY, settled, afterRestart, withResults } from "./transcript.js";

const LATENCIES_KEPT = 20;
const QUIET_BLOCKS = 75; // three seconds of 40 ms blocks
const SILENT = 0.0008; // a dead input, not a quiet room
const CLIPPED = 0.985;

export class Recording {
  constructor({ base, key, deviceId, raw, options, on }) {
    Object.assign(this, { base, key, deviceId, raw, options, on });
    this.transcript = EMPTY;
    this.sentBytes = 0;
    this.begin = 0; // page clock at the first sample
    this.heardS = 0;
    this.lagS = null;
    this.latencies = [];
    this.latestWordEndS = 0;
    this.recent = []; // peaks of the last blocks
    this.stopping = false;
    this.away = false; // the connection is lost and has not come back yet
    this.breaks = 0; // times it came back
    this.lostS = 0; // sound that no server has heard
  }

  async start() {
    try {
      this.microphone = await openMicrophone({
        deviceId: this.deviceId,
        raw: this.raw,
        onSound: (sound) => this.sound(sound),
        onLost: (code) => {
          this.on.failure(new Failure(code));
          this.stop();
        },
        onGap: (seconds) => this.on.note(`the device lost ${seconds.toFixed(2)} s of sound`),
      });
    } catch (error) {
      this.on.failure(error instanceof Failure ? error : new Failure("unsupported", String(error)));
      this.on.done();
      return;
    }
    if (this.stopping) { // pressed again while the browser was asking
      await this.microphone.stop();
      this.on.done();
      return;
    }
    this.on.started();
    this.session = new LiveSession({
      base: this.base,
      key: this.key,
      options: this.options,
      on: {
        state: (state) => this.state(state),
        message: (message) => this.message(message),
        restarted: (taken) => this.restarted(taken),
        done: (failure) => this.done(failure),
      },
    });
    this.session.start();
  }

  state(state) {
    if (this.away && state === "listening") this.breaks += 1;
    if (state === "listening" || state === "reconnecting") this.away = state === "reconnecting";
    if (!this.stopping || this.away) this.on.state(state);
    else if (state === "listening") this.on.state("finishing");
  }

  async stop() {
    if (this.stopping) {
      if (this.away) this.session?.cancel(); // pressed again: not waited for any longer
      return;
    }
    this.stopping = true;
    if (!this.microphone) return;
    if (!this.away) this.on.state("finishing");
    await this.microphone.stop();
    this.session?.finish();
  }

  sound({ pcm, rms, peak }) {
    if (!this.session) return;
    if (!this.begin) this.begin = performance.now() - (secondsOf(pcm.byteLength) * 1000);
    this.sentBytes += pcm.byteLength;
    this.recent.push(peak);
    if (this.recent.length > QUIET_BLOCKS) this.recent.shift();
    this.session.send(pcm);
    this.on.sound({ rms, peak });
    this.facts();
  }

  message(message) {
    if (message.type === "Results") {
      const before = this.transcript;
      this.transcript = withResults(before, message);
      this.heardS = Math.max(this.heardS, message.start + message.duration);
      this.measure(message);
      if (this.transcript !== before) this.on.transcript(this.transcript);
    } else if (message.type === "Heartbeat") {
      this.heardS = Math.max(this.heardS, message.processed_s ?? 0);
      this.lagS = message.lag_s ?? this.lagS;
    }
    this.facts();
  }

  restarted({ fromS, lostS }) {
    this.lostS += lostS;
    this.transcript = afterRestart(this.transcript, { fromS, lostS });
    this.on.transcript(this.transcript);
    this.on.failure(lostS ? new Failure("begun-with-gap", `${lostS.toFixed(1)} s of sound, until ${fromS.toFixed(1)} s`)
      : new Failure("begun-anew"));
  }

  // The time from the end of a word to the moment it is first read here.
  measure(message) {
    const last = message.channel?.alternatives?.[0]?.words?.at(-1);
    if (!last || last.end <= this.latestWordEndS || this.stopping) return;
    this.latestWordEndS = last.end;
    this.latencies.push((performance.now() - this.begin) / 1000 - last.end);
    if (this.latencies.length > LATENCIES_KEPT) this.latencies.shift();
  }

  facts() {
    const elapsedS = this.sentBytes / BYTES_PER_SECOND;
    this.on.facts({
      elapsedS,
      heardS: this.heardS,
      lagS: this.away ? elapsedS - this.heardS : this.lagS, // a server that is away tells nothing
      breaks: this.breaks,
      lostS: this.lostS,
      latencyS: median(this.latencies),
      quality: qualityOf(this.recent),
    });
  }

  async done(failure) {
    this.stopping = true;
    await this.microphone.stop();
    this.transcript = settled(this.transcript);
    this.on.transcript(this.transcript);
    if (failure) this.on.failure(failure);
    else if (this.begin) this.heardS = secondsOf(this.sentBytes);
    this.facts();
    this.on.done();
  }
}

export function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

// What the level says about the microphone, in a word.
export function qualityOf(peaks) {
  if (!peaks.length) return "–";
  const highest = Math.max(...peaks);
  if (peaks.length >= QUIET_BLOCKS && highest < SILENT) return "silent";
  if (highest > CLIPPED) return "too loud";
  if (highest < 0.03) return "quiet";
  return "good";
}
