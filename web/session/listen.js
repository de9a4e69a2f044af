// One session with the server: opens the socket, sends sound, comes back after a lost connection and goes on where
// it stopped (docs/reference/protocol.md, "Resume"). When the server has forgotten the session, a new one takes over
// by itself with all sound that is not final yet; times go on. Tells its owner through callbacks; draws nothing and
// knows no microphone.

import { Failure, failureFromClose, failureFromCode } from "./failures.js";
import { LIVE_SOUND, BYTES_PER_SECOND, listenAddress, parseMessage, secondsOf } from "./protocol.js";
import { Replay } from "./replay.js";
import { shifted } from "./transcript.js";

const OPEN = 1; // WebSocket.OPEN
export const KEPT_BYTES = BYTES_PER_SECOND * 120; // sound kept that is not final yet; of a longer break the rest is lost
const KEEP_ALIVE_MS = 4000;
const FINISH_MS = 30000; // silence from the server for so long after CloseStream ends the wait
export const RETRY_MS = [0, 500, 1000, 2000, 4000, ...Array(75).fill(8000)]; // waits before each attempt to come back
const MAX_RESTARTS = 5; // sessions in a row that decided nothing; something in the sound may be what ends them

export class LiveSession {
  // options: model, hotwords, sound (see listenAddress).
  // on: {state(name), message(m), begunAnew({fromS, lostS}), done(failure|null)}.
  // `open` and `ask` are the socket and the fetch; tests put theirs in.
  constructor({ base, key = "", options = {}, on, keptBytes = KEPT_BYTES, retryMs = RETRY_MS,
    open = (address, protocols) => new WebSocket(address, protocols), ask = (address, init) => fetch(address, init) }) {
    Object.assign(this, { base, key, on, open, ask, retryMs });
    this.options = { sound: LIVE_SOUND, ...options };
    this.replay = new Replay(keptBytes);
    this.id = null; // the server's name for this session; with it a lost one is taken up again
    this.sequence = 0; // the last numbered message that was seen
    // Raw sound can be begun in the middle by a new session; a container cannot.
    this.canBeginAnew = this.options.sound.encoding === LIVE_SOUND.encoding;
    this.sessionByte = 0; // where the present session began, in all the sound
    this.decidedByte = 0; // everything before it is final
    this.receivedByte = 0; // everything before it has arrived
    this.anew = 0;
    this.takesOver = false; // the next session to be opened goes on for one that is gone
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
      const message = parseMessage(data);
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
      if (failure?.code === "network") this.scheduleReconnect();
      else if (failure?.code === "draining" && this.id && this.canBeginAnew) this.startNewSession();
      else this.end(failure);
    };
  }

  take(message) {
    if (typeof message.sequence === "number") {
      if (message.sequence <= this.sequence) return; // told again after a resume
      this.sequence = message.sequence;
    }
    const socket = this.socket;
    if (message.type === "Started") this.handleStarted(message);
    else if (message.type === "Heartbeat") this.acknowledge(message.received_bytes);
    else if (message.type === "Results" && message.is_final) this.decided(message.start + message.duration);
    if (this.finishing) this.startFinishTimer();
    if (this.state !== "closed" && this.socket === socket) this.on.message(shifted(message, secondsOf(this.sessionByte)));
  }

  // What has arrived may be let go of; where a new session may have to hear it again, only what is final too.
  acknowledge(bytes) {
    this.receivedByte = Math.max(this.receivedByte, this.sessionByte + bytes);
    this.forget();
  }

  decided(endS) {
    this.anew = 0;
    const samples = Math.round((endS * BYTES_PER_SECOND) / 2);
    this.decidedByte = Math.min(this.replay.endByte, Math.max(this.decidedByte, this.sessionByte + samples * 2));
    this.forget();
  }

  forget() {
    this.replay.confirm(this.canBeginAnew ? Math.min(this.receivedByte, this.decidedByte) : this.receivedByte);
  }

  // The first message of every connection says how much the server has.
  handleStarted(message) {
    this.id = message.request_id;
    this.attempt = 0;
    this.messageBytes = Math.min(this.messageBytes, message.max_message_bytes ?? this.messageBytes);
    if (this.takesOver) this.finishRestart();
    const { blocks, missing } = this.replay.from(this.sessionByte + (message.received_bytes ?? 0));
    if (missing) {
      if (this.canBeginAnew) this.startNewSession();
      else this.end(new Failure("resume-lost"));
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
    if (this.id && failure.code === "capacity") this.startNewSession(); // it is there and does not know us any more
    else if (passing && this.begun) this.scheduleReconnect();
    else if (failure.code === "capacity" && this.begun) this.scheduleReconnect(new Failure("full-again"));
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

  // Whether there ever was a session; without one there is nothing to come back to.
  get begun() {
    return this.id !== null || this.anew > 0;
  }

  scheduleReconnect(fallbackFailure = new Failure(this.begun ? "network" : "unreachable")) {
    if (!this.begun || this.attempt >= this.retryMs.length) {
      this.end(fallbackFailure);
      return;
    }
    this.set("reconnecting");
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), this.retryMs[this.attempt]);
    this.attempt += 1;
  }

  // The session is gone: a new one hears again what was not final, as far as it is still here.
  startNewSession() {
    if (!this.canBeginAnew || this.anew >= MAX_RESTARTS) {
      this.end(new Failure("resume-lost"));
      return;
    }
    this.anew += 1;
    const old = this.socket;
    this.socket = null;
    old?.close(1000);
    this.takesOver = true;
    this.id = null;
    this.sequence = 0;
    this.attempt = 0;
    this.scheduleReconnect();
  }

  // The new session is there. What is lost is known only now: sound went on while it was being opened.
  finishRestart() {
    this.takesOver = false;
    const lostBytes = Math.max(0, this.replay.firstByte - this.decidedByte);
    this.sessionByte = this.decidedByte + lostBytes;
    this.decidedByte = this.receivedByte = this.sessionByte;
    this.on.restarted?.({ fromS: secondsOf(this.sessionByte), lostS: secondsOf(lostBytes) });
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
    this.startFinishTimer();
  }

  startFinishTimer() {
    clearTimeout(this.deadline);
    this.deadline = setTimeout(() => this.end(new Failure("network")), FINISH_MS);
  }
}
