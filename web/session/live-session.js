// One streaming session with the server: opens the socket, sends audio, reconnects and resumes after a lost connection
// (docs/reference/protocol.md, "Resume"). If the server no longer has the session, a replacement session starts with
// all audio that is not final yet; times continue. Reports through callbacks; no rendering, no microphone.

import { Failure, failureFromClose, failureFromCode } from "./failures.js";
import { LIVE_AUDIO, BYTES_PER_SECOND, listenUrl, parseMessage, secondsOf } from "./protocol.js";
import { ReplayBuffer } from "./replay-buffer.js";
import { shiftTimes } from "./transcript.js";

const OPEN = 1; // WebSocket.OPEN
export const REPLAY_BYTES = BYTES_PER_SECOND * 120; // limit of buffered audio; after a longer outage the rest is lost
const KEEP_ALIVE_MS = 4000;
const FINISH_TIMEOUT_MS = 30000; // after CloseStream, without any message from the server
export const RETRY_MS = [0, 500, 1000, 2000, 4000, ...Array(75).fill(8000)]; // delay before each reconnect attempt
const MAX_RESTARTS = 5; // consecutive replacement sessions without a final: the audio itself may end them

export class LiveSession {
  // options: model, hotwords, audio, smartFormat (see listenUrl).
  // on: {state(name), message(m), restarted({fromS, lostS}), done(failure|null)}.
  // `openSocket` and `fetch` can be replaced in tests.
  constructor({ base, key = "", options = {}, on, replayBytes = REPLAY_BYTES, retryMs = RETRY_MS,
    openSocket = (url, protocols) => new WebSocket(url, protocols), fetch = (url, init) => globalThis.fetch(url, init) }) {
    Object.assign(this, { base, key, on, openSocket, fetch, retryMs });
    this.options = { audio: LIVE_AUDIO, ...options };
    this.replay = new ReplayBuffer(replayBytes);
    this.id = null; // the server's session id, needed to resume
    this.sequence = 0; // highest sequence number received
    // A replacement session can start anywhere in raw audio, but not in the middle of a container.
    this.canRestart = this.options.audio.encoding === LIVE_AUDIO.encoding;
    this.sessionByte = 0; // position in the whole recording at which the current session started
    this.finalByte = 0; // everything before this position is final
    this.receivedByte = 0; // the server has everything before this position
    this.restarts = 0; // since the last final
    this.restarting = false; // the next connection opens a replacement session
    this.attempt = 0;
    this.state = "new";
    this.finishing = false;
    this.lastSentMs = 0;
    this.messageBytes = 65536;
  }

  start() {
    this.setState("connecting");
    this.connect();
    this.keepAlive = setInterval(() => this.sendKeepAlive(), KEEP_ALIVE_MS);
  }

  // Sends audio in order. While there is no connection it is buffered and sent later.
  send(data) {
    if (this.state === "closed" || this.finishing) return;
    const bytes = new Uint8Array(data);
    this.replay.add(bytes);
    if (this.state === "listening") this.transmit(bytes);
  }

  // Ends the audio. The server sends the last results and closes normally.
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

  // --- connection ---

  connect() {
    const resume = this.id ? { id: this.id, after: this.sequence } : null;
    const socket = this.openSocket(listenUrl(this.base, { ...this.options, resume }), this.key ? ["token", this.key] : []);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    let serverError = null;
    let opened = false;
    socket.onopen = () => { opened = true; };
    socket.onmessage = ({ data }) => {
      if (typeof data !== "string" || this.socket !== socket || this.state === "closed") return;
      const message = parseMessage(data);
      if (!message) return;
      if (message.type === "Error") serverError = failureFromCode(message.code, `${message.message} ${message.advice ?? ""}`.trim());
      this.receive(message);
    };
    socket.onclose = ({ code, reason }) => {
      if (this.socket !== socket || this.state === "closed") return;
      if (!opened) {
        this.handleRefusal();
        return;
      }
      const failure = serverError ?? failureFromClose(code, reason);
      if (failure?.code === "network") this.scheduleReconnect();
      else if (failure?.code === "draining" && this.id && this.canRestart) this.restart();
      else this.end(failure);
    };
  }

  receive(message) {
    if (typeof message.sequence === "number") {
      if (message.sequence <= this.sequence) return; // repeated after a resume
      this.sequence = message.sequence;
    }
    const socket = this.socket;
    if (message.type === "Started") this.handleStarted(message);
    else if (message.type === "Heartbeat") this.handleReceived(message.received_bytes);
    else if (message.type === "Results" && message.is_final) this.handleFinal(message.start + message.duration);
    if (this.finishing) this.startFinishTimer();
    if (this.state !== "closed" && this.socket === socket) this.on.message(shiftTimes(message, secondsOf(this.sessionByte)));
  }

  handleReceived(bytes) {
    this.receivedByte = Math.max(this.receivedByte, this.sessionByte + bytes);
    this.trimReplay();
  }

  handleFinal(endS) {
    this.restarts = 0;
    const samples = Math.round((endS * BYTES_PER_SECOND) / 2);
    this.finalByte = Math.min(this.replay.endByte, Math.max(this.finalByte, this.sessionByte + samples * 2));
    this.trimReplay();
  }

  // Resuming needs what the server has not received; a replacement session also needs what is not final.
  trimReplay() {
    this.replay.confirm(this.canRestart ? Math.min(this.receivedByte, this.finalByte) : this.receivedByte);
  }

  // `Started` is the first message of every connection and reports how much audio the server has.
  handleStarted(message) {
    this.id = message.request_id;
    this.attempt = 0;
    this.messageBytes = Math.min(this.messageBytes, message.max_message_bytes ?? this.messageBytes);
    if (this.restarting) this.finishRestart();
    const { blocks, missing } = this.replay.from(this.sessionByte + (message.received_bytes ?? 0));
    if (missing) {
      if (this.canRestart) this.restart();
      else this.end(new Failure("resume-lost"));
      return;
    }
    this.setState("listening");
    for (const bytes of blocks) this.transmit(bytes);
    if (this.finishing && !message.received_commands) this.sendFinish();
  }

  // Browsers hide the HTTP status of a refused handshake, so the reason is found by HTTP requests.
  async handleRefusal() {
    const failure = await this.findRefusalReason();
    if (this.state === "closed") return;
    const temporary = failure.code === "unreachable" || failure.code === "draining";
    if (this.id && failure.code === "capacity") this.restart(); // the server is ready, so it no longer has the session
    else if (temporary && this.everStarted) this.scheduleReconnect();
    else if (failure.code === "capacity" && this.everStarted) this.scheduleReconnect(new Failure("capacity-on-restart"));
    else this.end(failure);
  }

  async findRefusalReason() {
    try {
      const headers = this.key ? { Authorization: `Token ${this.key}` } : {};
      const models = await this.fetch(new URL("/v1/models", this.base), { headers });
      if (models.status === 401 || models.status === 403) return new Failure("key");
      const ready = await this.fetch(new URL("/readyz", this.base), {});
      if (!ready.ok) return new Failure("draining", await ready.text());
      return new Failure("capacity");
    } catch (error) {
      return new Failure("unreachable", error.message);
    }
  }

  // --- reconnecting, restarting, ending ---

  get everStarted() {
    return this.id !== null || this.restarts > 0;
  }

  scheduleReconnect(finalFailure = new Failure(this.everStarted ? "network" : "unreachable")) {
    if (!this.everStarted || this.attempt >= this.retryMs.length) {
      this.end(finalFailure);
      return;
    }
    this.setState("reconnecting");
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), this.retryMs[this.attempt]);
    this.attempt += 1;
  }

  // Replaces a session that the server no longer has. The new one gets all buffered audio that is not final.
  restart() {
    if (!this.canRestart || this.restarts >= MAX_RESTARTS) {
      this.end(new Failure("resume-lost"));
      return;
    }
    this.restarts += 1;
    const old = this.socket;
    this.socket = null;
    old?.close(1000);
    this.restarting = true;
    this.id = null;
    this.sequence = 0;
    this.attempt = 0;
    this.scheduleReconnect();
  }

  // The loss is computed when the new session has started: the buffer may drop audio while it is being opened.
  finishRestart() {
    this.restarting = false;
    const lostBytes = Math.max(0, this.replay.firstByte - this.finalByte);
    this.sessionByte = this.finalByte + lostBytes;
    this.finalByte = this.receivedByte = this.sessionByte;
    this.on.restarted?.({ fromS: secondsOf(this.sessionByte), lostS: secondsOf(lostBytes) });
  }

  setState(state) {
    if (this.state === state) return;
    this.state = state;
    this.on.state(state);
  }

  end(failure) {
    if (this.state === "closed") return;
    this.state = "closed";
    clearInterval(this.keepAlive);
    clearTimeout(this.retry);
    clearTimeout(this.finishTimer);
    this.socket?.close(1000);
    this.on.done(failure);
  }

  // --- sending ---

  // A closing socket accepts no data; unconfirmed audio is sent again after the reconnect.
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
    clearTimeout(this.finishTimer);
    this.finishTimer = setTimeout(() => this.end(new Failure("network")), FINISH_TIMEOUT_MS);
  }
}
