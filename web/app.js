// Wires the page together: button, keys, settings, files. What is heard lives in session/, what is seen in views/.

import { transcribeFile } from "./session/file.js";
import { Recording } from "./session/recording.js";
import { Failure } from "./session/failures.js";
import { hotwordsOf } from "./session/protocol.js";
import { EMPTY } from "./session/transcript.js";
import { Settings } from "./views/settings.js";
import { SessionView, minutes } from "./views/session-view.js";
import { followWords } from "./views/tooltip.js";
import { Waveform, loudness } from "./views/waveform.js";

const byId = (id) => document.getElementById(id);
const FILES_AT_ONCE = 2;
const SPOKEN_KEPT = 20; // lines kept for screen readers
const STATE_WORDS = {
  idle: "Ready",
  connecting: "Connecting",
  listening: "Listening",
  reconnecting: "Connection lost, coming back",
  finishing: "Last words",
};

const waveform = new Waveform(byId("waveform"));
const settings = new Settings(byId("settings"));
let recording = null;

// --- telling people ---

function setState(state, words = STATE_WORDS[state]) {
  document.body.dataset.state = state;
  byId("connection-words").textContent = words;
  byId("announcement").textContent = words;
  const busy = state !== "idle";
  byId("speak").setAttribute("aria-pressed", String(busy));
  byId("speak-label").textContent = busy ? "Stop" : "Speak";
  document.title = state === "listening" ? "● Silica" : "Silica";
}

function tell(failure) {
  byId("failure-message").textContent = failure.message;
  byId("failure-advice").textContent = failure.retryAfterS
    ? `${failure.advice} The server suggests ${Math.ceil(failure.retryAfterS)} seconds.`
    : failure.advice ?? "";
  byId("failure-detail").textContent = failure.detail ?? "";
  byId("failure-more").hidden = !failure.detail;
  byId("failure").hidden = false;
  byId("failure").dataset.code = failure.code ?? "server";
}

function say(text) {
  const spoken = byId("spoken");
  const line = document.createElement("p");
  line.textContent = text;
  spoken.append(line);
  while (spoken.childElementCount > SPOKEN_KEPT) spoken.firstElementChild.remove();
}

function addSession(title, { cancellable = false, cancel = () => {} } = {}) {
  byId("welcome").hidden = true;
  const view = new SessionView({
    title,
    cancellable,
    on: {
      say,
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

function showFacts({ elapsedS, latencyS, lagS, quality }) {
  byId("elapsed").textContent = minutes(elapsedS);
  byId("latency").textContent = latencyS === null ? "–" : `${latencyS.toFixed(1)} s`;
  byId("lag").textContent = lagS === null ? "–" : `${lagS.toFixed(1)} s`;
  byId("lag").classList.toggle("warn", lagS > 3);
  byId("level").textContent = quality;
  byId("level").classList.toggle("warn", quality === "too loud" || quality === "silent");
}

async function start() {
  byId("failure").hidden = true;
  setState("connecting");
  const now = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  let view = null;
  let served = false; // whether the server ever listened; without that there is nothing to show
  waveform.reset(true);
  const mine = new Recording({
    base: location.href,
    key: settings.key,
    deviceId: settings.microphone,
    raw: !settings.processing,
    options: { model: settings.model, hotwords: hotwordsOf(settings.hotwords) },
    on: {
      state: (state, words) => {
        served ||= state === "listening";
        setState(state, words);
      },
      started: () => {
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
        waveform.heard(facts.heardS);
        showFacts(facts);
        view?.note(minutes(facts.elapsedS));
      },
      note: (text) => view?.note(text),
      failure: tell,
      done: () => {
        view?.ended();
        if (view && !served) removeSession(view);
        waveform.rest();
        byId("halo").style.transform = "";
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
settings.onchange = () => document.body.classList.toggle("doubts", settings.doubts);
settings.onchange();

// --- files ---

const waitingFiles = [];
let activeFiles = 0;

function addFiles(files) {
  for (const file of files) {
    const control = new AbortController();
    const view = addSession(file.name, { cancellable: true, cancel: () => control.abort() });
    view.note("waiting");
    waitingFiles.push({ file, view, control });
  }
  nextFile();
}

async function nextFile() {
  if (activeFiles >= FILES_AT_ONCE || !waitingFiles.length) return;
  const { file, view, control } = waitingFiles.shift();
  activeFiles += 1;
  try {
    await transcribeFile(file, {
      base: location.href,
      key: settings.key,
      options: { model: settings.model, hotwords: hotwordsOf(settings.hotwords) },
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
      const failure = error instanceof Failure ? error : new Failure("server", String(error));
      view.note("failed");
      tell(failure);
    }
  } finally {
    activeFiles -= 1;
    view.ended();
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

followWords(byId("sessions"), byId("tip"));
waveform.draw();
settings.fillModels(location.href);
addEventListener("beforeunload", (event) => { if (recording) event.preventDefault(); });
