// One session with the server: opens the socket, sends sound, comes back after a lost connection and goes on where
// it stopped (PROTOCOL.md, "Resume"). Tells its owner through callbacks; draws nothing and knows no microphone.

import { Failure, failureFromClose, failureFromCode } from "./failures.js";
import { LIVE_SOUND, BYTES_PER_SECOND, listenAddress, parsed } from "./protocol.js";
import { Replay } from "./replay.js";

const OPEN = 1; // WebSocket.OPEN
const KEPT_BYTES = BYTES_PER_SECOND * 60; // unconfirmed sound kept; a longer break cannot be bridged
const KEEP_ALIVE_MS = 4000;
const FINISH_MS = 30000; // silence from the server for so long after CloseStream ends the wait
const RETRY_MS = [0, 500, 1000, 2000, 4000, 8000, 8000]; // waits before each attempt to come back

export class LiveSession {
  // options: model, hotwords, sound (see listenAddress). on: {state(name), message(m), drained(), done(failure|null)}.
  // `open` and `ask` are the socket and the fetch; tests put theirs in.
  constructor({ base, key = "", options = {}, on, keptBytes = KEPT_BYTES, retryMs = RETRY_MS,
    open = (address, protocols) => new WebSocket(address, protocols), ask = (address, init) => fetch(address, init) }) {
    Object.assign(this, { base, key, on, open, ask, retryMs });
    this.options = { sound: LIVE_SOUND, ...options };
    this.replay = new Replay(keptBytes);
    this.id = null; // the server's name for this session; with it a lost one is taken up again
    this.sequence = 0; // the last numbered message that was seen
    this.attempt = 0;
    this.state = "new";
    this.finishing = false;
    this.lastSentMs = 0;
    this.messageBytes = 65536;
  }

  start() {
    this.set("connecting");
    this.connect();
    this.keepAlive = setInterval(() => this.sendKeepAlive(), KEEP_ALIVE_MS);
  }

  // Sound in order. Before the server is there, and while it is lost, it is kept and sent later.
  send(data) {
    if (this.state === "closed" || this.finishing) return;
    const bytes = new Uint8Array(data);
    this.replay.add(bytes);
    if (this.state === "listening") this.transmit(bytes);
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

  get unsentBytes() {
    return this.state === "listening" ? this.socket.bufferedAmount : Infinity;
  }

  // --- the socket ---

  connect() {
    const resume = this.id ? { id: this.id, after: this.sequence } : null;
    const socket = this.open(listenAddress(this.base, { ...this.options, resume }), this.key ? ["token", this.key] : []);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    let failed = null;
    let opened = false;
    socket.onopen = () => { opened = true; };
    socket.onmessage = ({ data }) => {
      if (typeof data !== "string" || this.socket !== socket || this.state === "closed") return;
      const message = parsed(data);
      if (!message) return;
      if (message.type === "Error") failed = failureFromCode(message.code, `${message.message} ${message.advice ?? ""}`.trim());
      this.take(message);
    };
    socket.onclose = ({ code, reason }) => {
      if (this.socket !== socket || this.state === "closed") return;
      if (!opened) {
        this.refused();
        return;
      }
      const failure = failed ?? failureFromClose(code, reason);
      if (failure?.code === "network") this.comeBack();
      else this.end(failure);
    };
  }

  take(message) {
    if (typeof message.sequence === "number") {
      if (message.sequence <= this.sequence) return; // told again after a resume
      this.sequence = message.sequence;
    }
    if (message.type === "Started") this.welcome(message);
    else if (message.type === "Heartbeat") this.replay.confirm(message.received_bytes);
    if (this.finishing) this.waitForTheEnd();
    if (this.state !== "closed") this.on.message(message);
  }

  // The first message of every connection says how much the server has.
  welcome(message) {
    this.id = message.request_id;
    this.attempt = 0;
    this.messageBytes = Math.min(this.messageBytes, message.max_message_bytes ?? this.messageBytes);
    const { blocks, missing } = this.replay.from(message.received_bytes ?? 0);
    if (missing) {
      this.end(new Failure("resume-lost"));
      return;
    }
    this.set("listening");
    for (const bytes of blocks) this.transmit(bytes);
    if (this.finishing && !message.received_commands) this.sendFinish();
  }

  // A browser is not told why a handshake was refused, so the server is asked over HTTP.
  async refused() {
    const failure = await this.reason();
    if (this.state === "closed") return;
    const passing = failure.code === "unreachable" || failure.code === "draining";
    if (this.id && passing) this.comeBack();
    else if (this.id && failure.code === "capacity") this.end(new Failure("resume-lost"));
    else this.end(failure);
  }

  async reason() {
    try {
      const headers = this.key ? { Authorization: `Token ${this.key}` } : {};
      const models = await this.ask(new URL("/v1/models", this.base), { headers });
      if (models.status === 401 || models.status === 403) return new Failure("key");
      const ready = await this.ask(new URL("/readyz", this.base), {});
      if (!ready.ok) return new Failure("draining", await ready.text());
      return new Failure("capacity");
    } catch (error) {
      return new Failure("unreachable", error.message);
    }
  }

  // --- ends and returns ---

  comeBack() {
    if (!this.id || this.attempt >= this.retryMs.length) {
      this.end(new Failure(this.id ? "network" : "unreachable"));
      return;
    }
    this.set("reconnecting");
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), this.retryMs[this.attempt]);
    this.attempt += 1;
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

  // A socket that is closing takes nothing more; what is not confirmed is sent again after the return.
  transmit(bytes) {
    if (this.socket.readyState !== OPEN) return;
    this.socket.send(bytes);
    this.lastSentMs = Date.now();
  }

  sendKeepAlive() {
    if (this.state === "listening" && !this.finishing && Date.now() - this.lastSentMs >= KEEP_ALIVE_MS) {
      this.transmit(JSON.stringify({ type: "KeepAlive" }));
    }
  }

  sendFinish() {
    this.transmit(JSON.stringify({ type: "CloseStream" }));
    this.waitForTheEnd();
  }

  waitForTheEnd() {
    clearTimeout(this.deadline);
    this.deadline = setTimeout(() => this.end(new Failure("network")), FINISH_MS);
  }
}
