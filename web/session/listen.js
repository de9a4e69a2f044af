// One live session with the server: opens the socket, sends sound, comes back after a lost connection and goes on
// where it stopped. Tells its owner through callbacks; draws nothing and knows no microphone.

import { Failure, failureFromClose } from "./failures.js";
import { AUDIO_RATE, listenAddress, parsed } from "./protocol.js";
import { Replay } from "./replay.js";

const KEPT_BYTES = AUDIO_RATE * 2 * 60; // a minute of sound survives a broken connection
const KEEP_ALIVE_MS = 4000;
const FINISH_MS = 20000; // after CloseStream the rest of the words must come within this
const RETRY_MS = [0, 500, 1000, 2000, 4000, 8000]; // waits before each attempt to come back; then it is over

export class LiveSession {
  // options: what listenAddress takes. key: "" for none. on: {state, message, done}. socket: for tests.
  constructor({ base, key = "", options = {}, on, open = (address, protocols) => new WebSocket(address, protocols) }) {
    Object.assign(this, { base, key, options, on, open });
    this.replay = new Replay(KEPT_BYTES);
    this.id = null; // the server's name for this session; with it a lost one is taken up again
    this.sequence = 0; // the last numbered message that was seen
    this.attempt = 0;
    this.state = "new";
    this.finishing = false;
    this.lastSent = 0;
  }

  start() {
    this.set("connecting");
    this.connect();
    this.keepAlive = setInterval(() => this.sendKeepAlive(), KEEP_ALIVE_MS);
  }

  send(pcm) {
    if (this.state === "closed" || this.finishing) return;
    this.replay.add(new Uint8Array(pcm));
    if (this.state === "listening") this.transmit(pcm);
  }

  // No more sound: the server's last words and a clean end follow.
  finish() {
    if (this.state === "closed" || this.finishing) return;
    this.finishing = true;
    if (this.state === "listening") this.sendFinish();
  }

  cancel() {
    this.end(null);
  }

  // --- the socket ---

  connect() {
    const extra = this.id ? { resume: this.id, after: this.sequence } : {};
    const address = listenAddress(this.base, {
      ...this.options,
      extra: { encoding: "linear16", sample_rate: AUDIO_RATE, heartbeat: "true", ...extra },
    });
    const socket = this.open(address, this.key ? ["token", this.key] : []);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    let failed = null;
    let opened = false;
    socket.onopen = () => { opened = true; };
    socket.onmessage = ({ data }) => {
      if (typeof data !== "string" || this.socket !== socket) return;
      const message = parsed(data);
      if (!message) return;
      if (message.type === "Error") failed = failureOfMessage(message);
      this.take(message);
    };
    socket.onclose = ({ code, reason }) => {
      if (this.socket !== socket || this.state === "closed") return;
      const failure = failed ?? failureFromClose(code, reason);
      if (!failure) this.end(null);
      else if (failure.code === "network" && (opened || this.id)) this.comeBack();
      else if (failure.code === "network") this.refused();
      else this.end(failure);
    };
  }

  // The first message of every connection says from which sample on the server wants to hear.
  welcome(message) {
    const resumed = Boolean(this.id) && message.resumed === true;
    if (this.id && !resumed) return this.end(new Failure("resume-lost"));
    this.id = message.request_id ?? this.id;
    this.attempt = 0;
    const { blocks, missing } = this.replay.from(resumed ? message.received_samples * 2 : 0);
    if (missing) return this.end(new Failure("resume-lost"));
    this.set("listening");
    for (const bytes of blocks) this.transmit(bytes);
    if (this.finishing) this.sendFinish();
    return undefined;
  }

  take(message) {
    if (typeof message.sequence === "number") {
      if (message.sequence <= this.sequence) return; // sent again after a resume, already seen
      this.sequence = message.sequence;
    }
    if (message.type === "Started") this.welcome(message);
    if (message.type === "Heartbeat") this.replay.confirm(Math.floor(message.received_s * AUDIO_RATE) * 2);
    this.on.message(message);
  }

  // --- ends and returns ---

  comeBack() {
    if (this.attempt >= RETRY_MS.length) return this.end(new Failure("network"));
    this.set("reconnecting");
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), RETRY_MS[this.attempt]);
    this.attempt += 1;
    return undefined;
  }

  set(state) {
    if (this.state === state) return;
    this.state = state;
    this.on.state(state);
  }

  end(failure) {
    if (this.state === "closed") return;
    this.state = "closed";
    clearInterval(this.keepAlive);
    clearTimeout(this.retry);
    clearTimeout(this.deadline);
    this.socket?.close(1000);
    this.on.done(failure);
  }

  // --- sending ---

  transmit(bytes) {
    this.socket.send(bytes);
    this.lastSent = Date.now();
  }

  sendKeepAlive() {
    if (this.state === "listening" && !this.finishing && Date.now() - this.lastSent >= KEEP_ALIVE_MS) {
      this.transmit(JSON.stringify({ type: "KeepAlive" }));
    }
  }

  sendFinish() {
    this.transmit(JSON.stringify({ type: "CloseStream" }));
    this.deadline = setTimeout(() => this.end(new Failure("network")), FINISH_MS);
  }
}
