// The page's session with the server, against a scripted socket: order, resume, and honest ends.
import assert from "node:assert/strict";
import test, { afterEach } from "node:test";
import { failureFromClose, failureFromCode } from "../../web/session/failures.js";
import { KEPT_BYTES, LiveSession, RETRY_MS } from "../../web/session/listen.js";
import { BYTES_PER_SECOND, fileAddress, hotwordsOf, listenAddress, parseMessage } from "../../web/session/protocol.js";
import { Replay } from "../../web/session/replay.js";

class Socket {
  constructor(address, protocols) {
    Object.assign(this, { address: new URL(address), protocols, sent: [], bufferedAmount: 0, readyState: 1, closed: null });
  }
  send(data) { this.sent.push(typeof data === "string" ? JSON.parse(data).type : [...data]); }
  close(code) { this.closed = code; }
  started(more = {}) {
    this.onopen();
    this.message({ type: "Started", request_id: "s1", resumed: false, received_bytes: 0, received_commands: 0, ...more });
  }
  message(document) { this.onmessage({ data: JSON.stringify(document) }); }
}

const open = []; // a session that a failed test leaves would keep the process alive
afterEach(() => { for (const session of open.splice(0)) session.cancel(); });

function scripted({ answers = {}, keptBytes, options } = {}) {
  const sockets = [];
  const told = { states: [], messages: [], anew: [], ends: [] };
  const session = new LiveSession({
    base: "http://host:1/", retryMs: [0, 0], options, ...(keptBytes ? { keptBytes } : {}),
    open: (...args) => { sockets.push(new Socket(...args)); return sockets.at(-1); },
    ask: async (address) => {
      const status = answers[address.pathname];
      if (!status) throw new TypeError("no route");
      return { status, ok: status < 400, text: async () => "" };
    },
    on: {
      state: (s) => told.states.push(s), message: (m) => told.messages.push(m),
      restarted: (taken) => told.anew.push(taken), done: (f) => told.ends.push(f),
    },
  });
  open.push(session);
  session.start();
  return { session, sockets, told };
}
const turn = () => new Promise((resolve) => { setTimeout(resolve, 5); });

test("sound before the server is ready is kept and comes first", () => {
  const { session, sockets: [socket] } = scripted();
  session.send(Uint8Array.of(1, 2));
  assert.deepEqual(socket.sent, []);
  socket.started();
  session.send(Uint8Array.of(3));
  session.finish();
  session.send(Uint8Array.of(9));
  assert.deepEqual(socket.sent, [[1, 2], [3], "CloseStream"]);
  session.cancel();
});

test("after a break everything unheard is sent again, nothing twice, and repeated messages are passed over", async () => {
  const { session, sockets, told } = scripted();
  sockets[0].started({ sequence: 1 });
  session.send(Uint8Array.of(1, 2, 3, 4));
  session.send(Uint8Array.of(5, 6));
  sockets[0].message({ type: "Heartbeat", sequence: 2, received_bytes: 4 });
  sockets[0].message({ type: "Results", sequence: 7 });
  sockets[0].onclose({ code: 1006, reason: "" });
  session.send(Uint8Array.of(7));
  await turn();
  assert.equal(sockets[1].address.searchParams.get("resume"), "s1");
  assert.equal(sockets[1].address.searchParams.get("after"), "7");
  sockets[1].started({ resumed: true, received_bytes: 5 });
  assert.deepEqual(sockets[1].sent, [[6], [7]]);
  sockets[1].message({ type: "Results", sequence: 7 });
  sockets[1].message({ type: "Results", sequence: 8 });
  assert.deepEqual(told.messages.filter((m) => m.type === "Results").map((m) => m.sequence), [7, 8]);
  assert.deepEqual(told.states, ["connecting", "listening", "reconnecting", "listening"]);
  session.cancel();
});

test("a CloseStream that the server already has is not sent again", async () => {
  for (const [had, sent] of [[1, []], [0, ["CloseStream"]]]) {
    const { session, sockets } = scripted();
    sockets[0].started();
    session.finish();
    sockets[0].onclose({ code: 1006, reason: "" });
    await turn();
    sockets[1].started({ resumed: true, received_commands: had });
    assert.deepEqual(sockets[1].sent, sent);
    session.cancel();
  }
});

test("a break longer than what is kept: a new session goes on, and how much is missing is told", async () => {
  const { session, sockets, told } = scripted({ keptBytes: 4 });
  sockets[0].started();
  for (let i = 0; i < 9; i += 1) session.send(Uint8Array.of(i));
  sockets[0].onclose({ code: 1006, reason: "" });
  await turn();
  sockets[1].started({ resumed: true, received_bytes: 2 });
  await turn();
  assert.equal(sockets[1].closed, 1000);
  assert.equal(sockets[2].address.searchParams.get("resume"), null);
  session.send(Uint8Array.of(9)); // people speak on while it is being opened: the oldest goes, once more
  sockets[2].started({ sequence: 1 });
  assert.deepEqual(sockets[2].sent, [[6], [7], [8], [9]]);
  assert.deepEqual(told.anew, [{ fromS: 6 / 32000, lostS: 6 / 32000 }]);
  assert.equal(sockets.length, 3);
  assert.deepEqual(told.ends, []);
  session.cancel();
});

test("sound in a container cannot be begun in the middle: that is told, not papered over", async () => {
  const { session, sockets, told } = scripted({ keptBytes: 4, options: { sound: { source: "file" } } });
  sockets[0].started();
  for (let i = 0; i < 9; i += 1) session.send(Uint8Array.of(i));
  sockets[0].onclose({ code: 1006, reason: "" });
  await turn();
  sockets[1].started({ resumed: true, received_bytes: 2 });
  assert.deepEqual(told.ends.map((failure) => failure.code), ["resume-lost"]);
});

const second = (value) => new Uint8Array(32000).fill(value);
const final = (start, duration, sequence) => ({
  type: "Results", sequence, is_final: true, start, duration, channel: { alternatives: [{ words: [{ word: "a", start, end: start + duration }] }] },
});

test("a forgotten session is begun anew: what was not final is heard again, and times go on", async () => {
  const { session, sockets, told } = scripted({ answers: { "/v1/models": 200, "/readyz": 200 } });
  sockets[0].started({ sequence: 1 });
  for (const value of [1, 2, 3]) session.send(second(value));
  sockets[0].message({ type: "Heartbeat", sequence: 2, received_bytes: 96000 });
  sockets[0].message(final(0, 1.5, 3));
  sockets[0].onclose({ code: 1006, reason: "" });
  await turn();
  sockets[1].onclose({ code: 1006, reason: "" }); // the handshake was refused
  await turn();
  await turn();
  session.send(second(4));
  sockets[2].started({ request_id: "s2", sequence: 1 });
  assert.deepEqual(told.anew, [{ fromS: 1.5, lostS: 0 }]);
  assert.deepEqual(sockets[2].sent.map((bytes) => [bytes[0], bytes.length]), [[2, 16000], [3, 32000], [4, 32000]]);
  sockets[2].message(final(0, 1, 2));
  sockets[2].message({ type: "Heartbeat", sequence: 3, received_bytes: 64000, processed_s: 2 });
  const [first, later] = told.messages.filter((message) => message.type === "Results");
  assert.deepEqual([first.start, later.start, later.channel.alternatives[0].words[0].end], [0, 1.5, 2.5]);
  assert.equal(told.messages.at(-1).processed_s, 3.5);
  // Lost once more, it resumes the second session.
  sockets[2].onclose({ code: 1006, reason: "" });
  await turn();
  assert.equal(sockets[3].address.searchParams.get("resume"), "s2");
  sockets[3].started({ request_id: "s2", resumed: true, received_bytes: 80000 });
  assert.deepEqual(sockets[3].sent.map((bytes) => bytes.length), []);
  session.finish();
  assert.deepEqual(sockets[3].sent, ["CloseStream"]);
  session.cancel();
});

test("a server that ends every session is not tried for ever, and a restarted one that is full is told", async () => {
  const dying = scripted();
  for (let i = 0; i < 6; i += 1) {
    dying.sockets[i].started({ sequence: 1 });
    dying.sockets[i].onclose({ code: 1012, reason: "DRAINING" });
    await turn();
  }
  assert.deepEqual(dying.told.ends.map((failure) => failure.code), ["resume-lost"]);
  const full = scripted({ answers: { "/v1/models": 200, "/readyz": 200 } });
  full.sockets[0].started({ sequence: 1 });
  full.sockets[0].onclose({ code: 1012, reason: "DRAINING" });
  for (let i = 1; i < 4; i += 1) {
    await turn();
    full.sockets[i]?.onclose({ code: 1006, reason: "" });
    await turn();
  }
  assert.deepEqual(full.told.ends.map((failure) => failure.code), ["full-again"]);
});

test("after the last attempt the network is given up, once", async () => {
  const { sockets, told } = scripted();
  sockets[0].started();
  sockets[0].onclose({ code: 1006, reason: "" });
  for (let i = 1; i < 3; i += 1) {
    await turn();
    sockets[i].onclose({ code: 1006, reason: "" });
  }
  await turn();
  assert.deepEqual(told.ends.map((failure) => failure.code), ["network"]);
});

for (const [answers, code] of [
  [{}, "unreachable"],
  [{ "/v1/models": 401 }, "key"],
  [{ "/v1/models": 200, "/readyz": 503 }, "draining"],
  [{ "/v1/models": 200, "/readyz": 200 }, "capacity"],
]) {
  test(`a refused handshake becomes "${code}"`, async () => {
    const { sockets, told } = scripted({ answers });
    sockets[0].onclose({ code: 1006, reason: "" });
    await turn();
    assert.deepEqual(told.ends.map((failure) => failure.code), [code]);
  });
}

test("an Error before the close says why; a clean close is no failure", () => {
  const bad = scripted();
  bad.sockets[0].started();
  bad.sockets[0].message({ type: "Error", code: "DATA-0000", message: "no sound", advice: "check" });
  bad.sockets[0].onclose({ code: 1008, reason: "DATA-0000" });
  assert.equal(bad.told.ends[0].code, "bad-audio");
  assert.equal(bad.told.ends[0].detail, "no sound check");
  const good = scripted();
  good.sockets[0].started();
  good.session.finish();
  good.sockets[0].onclose({ code: 1000, reason: "" });
  assert.deepEqual(good.told.ends, [null]);
});

test("every close code of the protocol has words", () => {
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

test("the key travels as a subprotocol, the model and hotwords in the query", () => {
  const { session, sockets: [socket] } = scripted();
  assert.deepEqual(socket.protocols, []);
  session.cancel();
  const address = new URL(listenAddress("https://a.b/x", { model: "m", hotwords: ["one two", "three"] }));
  assert.equal(address.protocol, "wss:");
  assert.deepEqual(address.searchParams.getAll("keyterm"), ["one two", "three"]);
  assert.equal(address.searchParams.get("extensions"), "true");
});

test("hotwords as people type them", () => {
  assert.deepEqual(hotwordsOf(" Jasper ,\n kenlm   model,,\n"), ["Jasper", "kenlm model"]);
  assert.equal(hotwordsOf("a,".repeat(500)).length, 100);
});

test("what is no message is passed over", () => {
  for (const text of ["", "null", "[]", "3", "{}", '{"type":3}', "{"]) assert.equal(parseMessage(text), null);
});

test("replay: any position inside what is kept", () => {
  const replay = new Replay(100);
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

test("it tries to come back for longer than it keeps sound: nothing that is kept is thrown away unheard", () => {
  const patienceS = RETRY_MS.reduce((sum, wait) => sum + wait, 0) / 1000;
  assert.ok(patienceS > KEPT_BYTES / BYTES_PER_SECOND);
});

test("written words are asked for, live and for files", () => {
  assert.equal(new URL(listenAddress("http://host/", { written: true })).searchParams.get("smart_format"), "true");
  assert.equal(new URL(fileAddress("http://host/", { written: true })).searchParams.get("smart_format"), "true");
  assert.equal(new URL(listenAddress("http://host/")).searchParams.get("smart_format"), null);
});
