// Wires the page together: button, keys, settings, files. What is heard lives in session/, what is seen in views/.

import { minutes } from "./session/export.js";
import { transcribeFile } from "./session/file.js";
import { Recording } from "./session/recording.js";
import { Failure } from "./session/failures.js";
import { hotwordsOf } from "./session/protocol.js";
import { EMPTY } from "./session/transcript.js";
import { Settings } from "./views/settings.js";
import { LOW_CONFIDENCE, SessionView } from "./views/session-view.js";
import { followWords } from "./views/tooltip.js";
import { Waveform, loudness } from "./views/waveform.js";

const byId = (id) => document.getElementById(id);
const FILES_AT_ONCE = 2;
const SPOKEN_KEPT = 20; // lines kept for screen readers
const STATE_WORDS = {
  idle: "Ready",
  connecting: "Connecting",
  listening: "Listening",
  reconnecting: "Connection lost, what you say is kept",
  finishing: "Last words",
};

const NO_SOUND = "No sound arrives. Is the right microphone chosen under Settings, and is it switched on?";

const waveform = new Waveform(byId("waveform"));
const settings = new Settings(byId("settings"));
let recording = null;

// --- telling people ---

function setState(state) {
  const words = STATE_WORDS[state];
  document.body.dataset.state = state;
  byId("connection-words").textContent = words;
  byId("announcement").textContent = words;
  byId("speak-label").textContent = state === "idle" ? "Speak" : "Stop";
  document.title = state === "listening" ? "● Silica" : "Silica";
}

function showFailure(failure) {
  byId("failure-message").textContent = failure.message;
  byId("failure-advice").textContent = failure.advice ?? "";
  byId("failure-detail").textContent = failure.detail ?? "";
  byId("failure-more").hidden = !failure.detail;
  byId("failure").hidden = false;
  byId("failure").dataset.code = failure.code ?? "server";
}

// A finished line for screen readers; what is marked for the eye as doubtful is said too.
function announceLine(words) {
  const spoken = byId("spoken");
  const line = document.createElement("p");
  const unsure = settings.doubts ? words.filter((word) => word.confidence < LOW_CONFIDENCE) : [];
  const said = words.map((word) => word.text).join(" ");
  line.textContent = unsure.length ? `${said} (unsure: ${unsure.map((word) => word.text).join(", ")})` : said;
  spoken.append(line);
  while (spoken.childElementCount > SPOKEN_KEPT) spoken.firstElementChild.remove();
}

function addSession(title, { cancellable = false, cancel = () => {} } = {}) {
  byId("welcome").hidden = true;
  const view = new SessionView({
    title,
    cancellable,
    on: {
      say: announceLine,
      cancel,
      remove() {
        removeSession(view);
        byId("speak").focus();
      },
    },
  });
  byId("sessions").append(view.node);
  view.show(EMPTY);
  return view;
}

function removeSession(view) {
  view.node.remove();
  byId("welcome").hidden = byId("sessions").childElementCount > 0;
}

// Follows the newest words, unless the reader has scrolled up.
function follow(change) {
  const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 120;
  change();
  if (atEnd) scrollTo({ top: document.documentElement.scrollHeight });
}

// --- speaking ---

// What every session of this page asks the server for.
function requestOptions() {
  return { model: settings.model, hotwords: hotwordsOf(settings.hotwords), written: settings.written };
}

function describeReconnects({ breaks, lostS }) {
  if (!breaks) return "";
  const times = breaks === 1 ? "once" : `${breaks} times`;
  const missing = lostS ? `${lostS.toFixed(1)} s of sound are missing` : "nothing is missing";
  return `The connection was lost ${times} and came back; ${missing}.`;
}

function showFacts({ elapsedS, latencyS, lagS, quality }) {
  byId("elapsed").textContent = minutes(elapsedS);
  byId("latency").textContent = latencyS === null ? "–" : `${latencyS.toFixed(1)} s`;
  byId("lag").textContent = lagS === null ? "–" : `${lagS.toFixed(1)} s`;
  byId("lag").classList.toggle("warn", lagS > 3);
  showLevel(quality);
}

function showLevel(quality) {
  byId("level").textContent = quality;
  byId("level").classList.toggle("warn", quality === "too loud" || quality === "silent");
}

async function start() {
  byId("failure").hidden = true;
  setState("connecting");
  const now = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  let view = null;
  let served = false; // whether the server ever listened; without that there is nothing to show
  waveform.reset();
  const mine = new Recording({
    base: location.href,
    key: settings.key,
    deviceId: settings.microphone,
    raw: !settings.processing,
    options: requestOptions(),
    on: {
      state: (state) => {
        served ||= state === "listening";
        setState(state);
      },
      started: () => {
        document.body.classList.remove("fresh");
        view = addSession(`Microphone, ${now}`);
        follow(() => {});
        settings.fillMicrophones();
      },
      sound: ({ rms }) => {
        waveform.add(rms);
        byId("halo").style.transform = `scale(${(1 + loudness(rms) * 0.4).toFixed(3)})`;
      },
      transcript: (transcript) => follow(() => view.show(transcript)),
      facts: (facts) => {
        waveform.markProcessed(facts.heardS);
        showFacts(facts);
        view?.note(minutes(facts.elapsedS));
        view?.mention(describeReconnects(facts));
        view?.hint(facts.quality === "silent" ? NO_SOUND : "Listening");
      },
      note: (text) => view?.note(text),
      failure: showFailure,
      done: () => {
        view?.ended();
        if (view && !served) removeSession(view);
        byId("halo").style.transform = "";
        showLevel("–");
        byId("lag").textContent = "–";
        recording = null;
        setState("idle");
      },
    },
  });
  recording = mine;
  await mine.start();
}

function toggle() {
  if (!recording) start();
  else recording.stop();
}

byId("speak").onclick = toggle;
addEventListener("keydown", (event) => {
  const free = event.target === document.body || event.target === byId("main");
  if (event.code === "Space" && free && !event.repeat && !byId("settings").open) {
    event.preventDefault();
    toggle();
  }
});
byId("failure-close").onclick = () => {
  byId("failure").hidden = true;
  byId("speak").focus();
};
byId("open-settings").onclick = () => settings.open();
settings.onchange = () => {
  document.body.classList.toggle("doubts", settings.doubts);
  settings.fillModels(location.href); // with a new key there may be others
};
settings.onchange();

// --- files ---

const waitingFiles = [];
let activeFiles = 0;

function addFiles(files) {
  let first = null;
  for (const file of files) {
    const control = new AbortController();
    const waiting = { file, control };
    waiting.view = addSession(file.name, { cancellable: true, cancel: () => cancelFile(waiting) });
    waiting.view.note("waiting");
    waitingFiles.push(waiting);
    first ??= waiting.view;
    nextFile();
  }
  first?.node.scrollIntoView();
}

function cancelFile(waiting) {
  waiting.control.abort();
  const at = waitingFiles.indexOf(waiting);
  if (at < 0) return; // being heard: ends by the signal
  waitingFiles.splice(at, 1);
  waiting.view.note("cancelled");
  waiting.view.ended("");
}

async function nextFile() {
  if (activeFiles >= FILES_AT_ONCE || !waitingFiles.length) return;
  const { file, view, control } = waitingFiles.shift();
  activeFiles += 1;
  try {
    await transcribeFile(file, {
      base: location.href,
      key: settings.key,
      options: requestOptions(),
      signal: control.signal,
      on: {
        progress: (share, words) => {
          view.progress(share);
          view.note(words);
        },
        transcript: (transcript) => view.show(transcript),
      },
    });
  } catch (error) {
    if (control.signal.aborted) view.note("cancelled");
    else {
      view.failed(error instanceof Failure ? error : new Failure("server", String(error)));
    }
  } finally {
    activeFiles -= 1;
    view.ended(control.signal.aborted ? "" : undefined);
    nextFile();
  }
}

byId("open-files").onclick = () => byId("file-input").click();
byId("file-input").onchange = ({ target }) => {
  addFiles(target.files);
  target.value = "";
};

let dragDepth = 0;
const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
addEventListener("dragenter", (event) => {
  if (!carriesFiles(event)) return;
  dragDepth += 1;
  document.body.classList.add("dropping");
});
addEventListener("dragleave", (event) => {
  if (!carriesFiles(event)) return;
  dragDepth = Math.max(0, dragDepth - 1);
  if (!dragDepth) document.body.classList.remove("dropping");
});
addEventListener("dragover", (event) => { if (carriesFiles(event)) event.preventDefault(); });
addEventListener("drop", (event) => {
  if (!carriesFiles(event)) return;
  event.preventDefault();
  dragDepth = 0;
  document.body.classList.remove("dropping");
  addFiles(event.dataTransfer.files);
});

followWords(byId("sessions"), byId("tip"), byId("announcement"));
waveform.draw();
addEventListener("beforeunload", (event) => { if (recording) event.preventDefault(); });
