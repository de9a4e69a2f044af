// LiveSession against a fake socket: message order, resume, replacement sessions, failures.
import assert from "node:assert/strict";
import test, { afterEach } from "node:test";
import { failureFromClose, failureFromCode } from "../../web/session/failures.js";
import { REPLAY_BYTES, LiveSession, RETRY_MS } from "../../web/session/live-session.js";
import { BYTES_PER_SECOND, fileUrl, parseHotwords, listenUrl, parseMessage } from "../../web/session/protocol.js";
import { ReplayBuffer } from "../../web/session/replay-buffer.js";

class FakeSocket {
  constructor(url, protocols) {
    Object.assign(this, { url: new URL(url), protocols, sent: [], bufferedAmount: 0, readyState: 1, closed: null });
  }
  send(data) { this.sent.push(typeof data === "string" ? JSON.parse(data).type : [...data]); }
  close(code) { this.closed = code; }
  started(fields = {}) {
    this.onopen();
    this.message({ type: "Started", request_id: "s1", resumed: false, received_bytes: 0, received_commands: 0, ...fields });
  }
  message(document) { this.onmessage({ data: JSON.stringify(document) }); }
}

const openSessions = []; // cancelled after each test: their timers keep the process alive
afterEach(() => { for (const session of openSessions.splice(0)) session.cancel(); });

function startSession({ statuses = {}, replayBytes, options } = {}) {
  const sockets = [];
  const events = { states: [], messages: [], restarts: [], ends: [] };
  const session = new LiveSession({
    base: "http://host:1/", retryMs: [0, 0], options, ...(replayBytes ? { replayBytes } : {}),
    openSocket: (...args) => { sockets.push(new FakeSocket(...args)); return sockets.at(-1); },
    fetch: async (url) => {
      const status = statuses[url.pathname];
      if (!status) throw new TypeError("no route");
      return { status, ok: status < 400, text: async () => "" };
    },
    on: {
      state: (s) => events.states.push(s), message: (m) => events.messages.push(m),
      restarted: (restart) => events.restarts.push(restart), done: (f) => events.ends.push(f),
    },
  });
  openSessions.push(session);
  session.start();
  return { session, sockets, events };
}
const tick = () => new Promise((resolve) => { setTimeout(resolve, 5); });

test("audio sent before Started is buffered and sent first", () => {
  const { session, sockets: [socket] } = startSession();
  session.send(Uint8Array.of(1, 2));
  assert.deepEqual(socket.sent, []);
  socket.started();
  session.send(Uint8Array.of(3));
  session.finish();
  session.send(Uint8Array.of(9));
  assert.deepEqual(socket.sent, [[1, 2], [3], "CloseStream"]);
  session.cancel();
});

test("a resume sends what the server has not received, once, and ignores repeated messages", async () => {
  const { session, sockets, events } = startSession();
  sockets[0].started({ sequence: 1 });
  session.send(Uint8Array.of(1, 2, 3, 4));
  session.send(Uint8Array.of(5, 6));
  sockets[0].message({ type: "Heartbeat", sequence: 2, received_bytes: 4 });
  sockets[0].message({ type: "Results", sequence: 7 });
  sockets[0].onclose({ code: 1006, reason: "" });
  session.send(Uint8Array.of(7));
  await tick();
  assert.equal(sockets[1].url.searchParams.get("resume"), "s1");
  assert.equal(sockets[1].url.searchParams.get("after"), "7");
  sockets[1].started({ resumed: true, received_bytes: 5 });
  assert.deepEqual(sockets[1].sent, [[6], [7]]);
  sockets[1].message({ type: "Results", sequence: 7 });
  sockets[1].message({ type: "Results", sequence: 8 });
  assert.deepEqual(events.messages.filter((m) => m.type === "Results").map((m) => m.sequence), [7, 8]);
  assert.deepEqual(events.states, ["connecting", "listening", "reconnecting", "listening"]);
  session.cancel();
});

test("a CloseStream that the server has received is not sent again", async () => {
  for (const [received, sent] of [[1, []], [0, ["CloseStream"]]]) {
    const { session, sockets } = startSession();
    sockets[0].started();
    session.finish();
    sockets[0].onclose({ code: 1006, reason: "" });
    await tick();
    sockets[1].started({ resumed: true, received_commands: received });
    assert.deepEqual(sockets[1].sent, sent);
    session.cancel();
  }
});

test("an outage longer than the buffer starts a new session and reports the loss", async () => {
  const { session, sockets, events } = startSession({ replayBytes: 4 });
  sockets[0].started();
  for (let i = 0; i < 9; i += 1) session.send(Uint8Array.of(i));
  sockets[0].onclose({ code: 1006, reason: "" });
  await tick();
  sockets[1].started({ resumed: true, received_bytes: 2 });
  await tick();
  assert.equal(sockets[1].closed, 1000);
  assert.equal(sockets[2].url.searchParams.get("resume"), null);
  session.send(Uint8Array.of(9)); // audio continues while the session is opened: the buffer drops the oldest block
  sockets[2].started({ sequence: 1 });
  assert.deepEqual(sockets[2].sent, [[6], [7], [8], [9]]);
  assert.deepEqual(events.restarts, [{ fromS: 6 / 32000, lostS: 6 / 32000 }]);
  assert.equal(sockets.length, 3);
  assert.deepEqual(events.ends, []);
  session.cancel();
});

test("a session with a container cannot be restarted: it fails", async () => {
  const { session, sockets, events } = startSession({ replayBytes: 4, options: { audio: { source: "file" } } });
  sockets[0].started();
  for (let i = 0; i < 9; i += 1) session.send(Uint8Array.of(i));
  sockets[0].onclose({ code: 1006, reason: "" });
  await tick();
  sockets[1].started({ resumed: true, received_bytes: 2 });
  assert.deepEqual(events.ends.map((failure) => failure.code), ["resume-lost"]);
});

const second = (value) => new Uint8Array(32000).fill(value);
const final = (start, duration, sequence) => ({
  type: "Results", sequence, is_final: true, start, duration, channel: { alternatives: [{ words: [{ word: "a", start, end: start + duration }] }] },
});

test("a replacement session transcribes what was not final, with continuous times", async () => {
  const { session, sockets, events } = startSession({ statuses: { "/v1/models": 200, "/readyz": 200 } });
  sockets[0].started({ sequence: 1 });
  for (const value of [1, 2, 3]) session.send(second(value));
  sockets[0].message({ type: "Heartbeat", sequence: 2, received_bytes: 96000 });
  sockets[0].message(final(0, 1.5, 3));
  sockets[0].onclose({ code: 1006, reason: "" });
  await tick();
  sockets[1].onclose({ code: 1006, reason: "" }); // the handshake was refused
  await tick();
  await tick();
  session.send(second(4));
  sockets[2].started({ request_id: "s2", sequence: 1 });
  assert.deepEqual(events.restarts, [{ fromS: 1.5, lostS: 0 }]);
  assert.deepEqual(sockets[2].sent.map((bytes) => [bytes[0], bytes.length]), [[2, 16000], [3, 32000], [4, 32000]]);
  sockets[2].message(final(0, 1, 2));
  sockets[2].message({ type: "Heartbeat", sequence: 3, received_bytes: 64000, processed_s: 2 });
  const [first, later] = events.messages.filter((message) => message.type === "Results");
  assert.deepEqual([first.start, later.start, later.channel.alternatives[0].words[0].end], [0, 1.5, 2.5]);
  assert.equal(events.messages.at(-1).processed_s, 3.5);
  // After another lost connection the second session is resumed.
  sockets[2].onclose({ code: 1006, reason: "" });
  await tick();
  assert.equal(sockets[3].url.searchParams.get("resume"), "s2");
  sockets[3].started({ request_id: "s2", resumed: true, received_bytes: 80000 });
  assert.deepEqual(sockets[3].sent.map((bytes) => bytes.length), []);
  session.finish();
  assert.deepEqual(sockets[3].sent, ["CloseStream"]);
  session.cancel();
});

test("restarts are limited, and a full server is reported as such", async () => {
  const draining = startSession();
  for (let i = 0; i < 6; i += 1) {
    draining.sockets[i].started({ sequence: 1 });
    draining.sockets[i].onclose({ code: 1012, reason: "DRAINING" });
    await tick();
  }
  assert.deepEqual(draining.events.ends.map((failure) => failure.code), ["resume-lost"]);
  const full = startSession({ statuses: { "/v1/models": 200, "/readyz": 200 } });
  full.sockets[0].started({ sequence: 1 });
  full.sockets[0].onclose({ code: 1012, reason: "DRAINING" });
  for (let i = 1; i < 4; i += 1) {
    await tick();
    full.sockets[i]?.onclose({ code: 1006, reason: "" });
    await tick();
  }
  assert.deepEqual(full.events.ends.map((failure) => failure.code), ["capacity-on-restart"]);
});

test("after the last reconnect attempt the session ends with one failure", async () => {
  const { sockets, events } = startSession();
  sockets[0].started();
  sockets[0].onclose({ code: 1006, reason: "" });
  for (let i = 1; i < 3; i += 1) {
    await tick();
    sockets[i].onclose({ code: 1006, reason: "" });
  }
  await tick();
  assert.deepEqual(events.ends.map((failure) => failure.code), ["network"]);
});

for (const [statuses, code] of [
  [{}, "unreachable"],
  [{ "/v1/models": 401 }, "key"],
  [{ "/v1/models": 200, "/readyz": 503 }, "draining"],
  [{ "/v1/models": 200, "/readyz": 200 }, "capacity"],
]) {
  test(`a refused handshake becomes "${code}"`, async () => {
    const { sockets, events } = startSession({ statuses });
    sockets[0].onclose({ code: 1006, reason: "" });
    await tick();
    assert.deepEqual(events.ends.map((failure) => failure.code), [code]);
  });
}

test("an Error message gives the failure of the close; a normal close is no failure", () => {
  const failed = startSession();
  failed.sockets[0].started();
  failed.sockets[0].message({ type: "Error", code: "DATA-0000", message: "no audio", advice: "check" });
  failed.sockets[0].onclose({ code: 1008, reason: "DATA-0000" });
  assert.equal(failed.events.ends[0].code, "bad-audio");
  assert.equal(failed.events.ends[0].detail, "no audio check");
  const normal = startSession();
  normal.sockets[0].started();
  normal.session.finish();
  normal.sockets[0].onclose({ code: 1000, reason: "" });
  assert.deepEqual(normal.events.ends, [null]);
});

test("every close code of the protocol maps to a failure", () => {
  const code = (...close) => failureFromClose(...close)?.code ?? null;
  assert.equal(code(1000, ""), null);
  assert.equal(code(1008, "DATA-0001 text"), "bad-audio");
  assert.equal(code(1008, "KEY-0000 revoked"), "key");
  assert.equal(code(1011, "NET-0001 idle"), "idle");
  assert.equal(code(1011, "INTERNAL"), "server");
  assert.equal(code(1012, "DRAINING"), "draining");
  assert.equal(code(4000, "RESUMED elsewhere"), "server");
  for (const known of ["capacity", "nonsense"]) assert.ok(failureFromCode(known).advice.length > 0);
});

test("the API key is a subprotocol, model and hotwords are in the query", () => {
  const { session, sockets: [socket] } = startSession();
  assert.deepEqual(socket.protocols, []);
  session.cancel();
  const url = new URL(listenUrl("https://a.b/x", { model: "m", hotwords: ["one two", "three"] }));
  assert.equal(url.protocol, "wss:");
  assert.deepEqual(url.searchParams.getAll("keyterm"), ["one two", "three"]);
  assert.equal(url.searchParams.get("extensions"), "true");
});

test("hotwords are split at commas and lines, and limited", () => {
  assert.deepEqual(parseHotwords(" Jasper ,\n kenlm   model,,\n"), ["Jasper", "kenlm model"]);
  assert.equal(parseHotwords("a,".repeat(500)).length, 100);
});

test("invalid messages parse to null", () => {
  for (const text of ["", "null", "[]", "3", "{}", '{"type":3}', "{"]) assert.equal(parseMessage(text), null);
});

test("the replay buffer returns everything from any buffered position", () => {
  const replay = new ReplayBuffer(100);
  for (const block of [[0, 1, 2], [3], [4, 5, 6, 7]]) replay.add(Uint8Array.from(block));
  replay.confirm(2);
  for (let position = 2; position <= 8; position += 1) {
    const { blocks, missing } = replay.from(position);
    assert.deepEqual(blocks.flatMap((block) => [...block]), [2, 3, 4, 5, 6, 7].filter((byte) => byte >= position));
    assert.equal(missing, 0);
  }
  replay.confirm(4);
  assert.equal(replay.from(2).missing, 2);
});

test("reconnecting lasts longer than the buffered audio", () => {
  const retryS = RETRY_MS.reduce((sum, wait) => sum + wait, 0) / 1000;
  assert.ok(retryS > REPLAY_BYTES / BYTES_PER_SECOND);
});

test("smart_format is requested for live audio and for files", () => {
  assert.equal(new URL(listenUrl("http://host/", { smartFormat: true })).searchParams.get("smart_format"), "true");
  assert.equal(new URL(fileUrl("http://host/", { smartFormat: true })).searchParams.get("smart_format"), "true");
  assert.equal(new URL(listenUrl("http://host/")).searchParams.get("smart_format"), null);
});
