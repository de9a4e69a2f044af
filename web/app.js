// Wires the page together: record button, keyboard, settings, files. Sessions are in session/, rendering is in views/.

import { formatDuration } from "./session/export.js";
import { transcribeFile } from "./session/file.js";
import { Recording } from "./session/recording.js";
import { Failure } from "./session/failures.js";
import { parseHotwords } from "./session/protocol.js";
import { EMPTY_TRANSCRIPT } from "./session/transcript.js";
import { Settings } from "./views/settings.js";
import { LOW_CONFIDENCE, SessionView } from "./views/session-view.js";
import { attachWordTooltip } from "./views/tooltip.js";
import { Waveform, barHeight } from "./views/waveform.js";

const byId = (id) => document.getElementById(id);
const MAX_CONCURRENT_FILES = 2;
const MAX_ANNOUNCED_LINES = 20; // lines kept in the live region for screen readers
const LAG_WARNING_S = 3;
const STATE_LABELS = {
  idle: "Ready",
  connecting: "Connecting",
  listening: "Listening",
  reconnecting: "Connection lost, audio is buffered",
  finishing: "Finishing",
};

const NO_INPUT_HINT = "No audio from the microphone. Check that the right one is selected under Settings and is not muted.";

const waveform = new Waveform(byId("waveform"));
const settings = new Settings(byId("settings"));
let recording = null;

// --- status, failures, announcements ---

function setState(state) {
  const label = STATE_LABELS[state];
  document.body.dataset.state = state;
  byId("connection-label").textContent = label;
  byId("announcement").textContent = label;
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

// Adds a closed line to the live region. Low-confidence words are listed as well when they are highlighted on screen.
function announceLine(words) {
  const log = byId("closed-lines");
  const line = document.createElement("p");
  const uncertain = settings.highlightUncertain ? words.filter((word) => word.confidence < LOW_CONFIDENCE) : [];
  const text = words.map((word) => word.text).join(" ");
  line.textContent = uncertain.length ? `${text} (uncertain: ${uncertain.map((word) => word.text).join(", ")})` : text;
  log.append(line);
  while (log.childElementCount > MAX_ANNOUNCED_LINES) log.firstElementChild.remove();
}

function addSession(title, { cancellable = false, cancel = () => {} } = {}) {
  byId("welcome").hidden = true;
  const view = new SessionView({
    title,
    cancellable,
    on: {
      lineClosed: announceLine,
      cancel,
      remove() {
        removeSession(view);
        byId("speak").focus();
      },
    },
  });
  byId("sessions").append(view.node);
  view.show(EMPTY_TRANSCRIPT);
  return view;
}

function removeSession(view) {
  view.node.remove();
  byId("welcome").hidden = byId("sessions").childElementCount > 0;
}

// Applies a change and scrolls to the newest words, unless the user has scrolled up.
function keepScrolledToEnd(change) {
  const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 120;
  change();
  if (atEnd) scrollTo({ top: document.documentElement.scrollHeight });
}

// --- live recording ---

function requestOptions() {
  return { model: settings.model, hotwords: parseHotwords(settings.hotwords), smartFormat: settings.smartFormat };
}

function describeReconnects({ reconnects, lostS }) {
  if (!reconnects) return "";
  const times = reconnects === 1 ? "once" : `${reconnects} times`;
  const missing = lostS ? `${lostS.toFixed(1)} s of audio are missing` : "no audio is missing";
  return `The connection was lost and restored ${times}; ${missing}.`;
}

function showStats({ elapsedS, latencyS, lagS, inputLevel }) {
  byId("elapsed").textContent = formatDuration(elapsedS);
  byId("latency").textContent = latencyS === null ? "–" : `${latencyS.toFixed(1)} s`;
  byId("lag").textContent = lagS === null ? "–" : `${lagS.toFixed(1)} s`;
  byId("lag").classList.toggle("warn", lagS > LAG_WARNING_S);
  showInputLevel(inputLevel);
}

function showInputLevel(inputLevel) {
  byId("level").textContent = inputLevel;
  byId("level").classList.toggle("warn", inputLevel === "too loud" || inputLevel === "silent");
}

async function start() {
  byId("failure").hidden = true;
  setState("connecting");
  const now = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  let view = null;
  let connected = false; // without a connection there is no transcript to show
  waveform.reset();
  recording = new Recording({
    base: location.href,
    key: settings.key,
    deviceId: settings.microphone,
    browserProcessing: settings.browserProcessing,
    options: requestOptions(),
    on: {
      state: (state) => {
        connected ||= state === "listening";
        setState(state);
      },
      started: () => {
        document.body.classList.remove("fresh");
        view = addSession(`Microphone, ${now}`);
        keepScrolledToEnd(() => {});
        settings.fillMicrophones();
      },
      audio: ({ rms }) => {
        waveform.add(rms);
        byId("halo").style.transform = `scale(${(1 + barHeight(rms) * 0.4).toFixed(3)})`;
      },
      transcript: (transcript) => keepScrolledToEnd(() => view.show(transcript)),
      stats: (stats) => {
        waveform.setProcessed(stats.processedS);
        showStats(stats);
        view?.setMeta(formatDuration(stats.elapsedS));
        view?.setRemark(describeReconnects(stats));
        view?.setPlaceholder(stats.inputLevel === "silent" ? NO_INPUT_HINT : "Listening");
      },
      notice: (text) => view?.setMeta(text),
      failure: showFailure,
      done: () => {
        view?.finish();
        if (view && !connected) removeSession(view);
        byId("halo").style.transform = "";
        showInputLevel("–");
        byId("lag").textContent = "–";
        recording = null;
        setState("idle");
      },
    },
  });
  await recording.start();
}

function toggle() {
  if (!recording) start();
  else recording.stop();
}

byId("speak").onclick = toggle;
addEventListener("keydown", (event) => {
  const unfocused = event.target === document.body || event.target === byId("main");
  if (event.code === "Space" && unfocused && !event.repeat && !byId("settings").open) {
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
  document.body.classList.toggle("highlight-uncertain", settings.highlightUncertain);
  settings.fillModels(location.href); // the list of models depends on the API key
};
settings.onchange();

// --- files ---

const queue = [];
let activeFiles = 0;

function addFiles(files) {
  let first = null;
  for (const file of files) {
    const entry = { file, control: new AbortController() };
    entry.view = addSession(file.name, { cancellable: true, cancel: () => cancelFile(entry) });
    entry.view.setMeta("waiting");
    queue.push(entry);
    first ??= entry.view;
    transcribeNext();
  }
  first?.node.scrollIntoView();
}

function cancelFile(entry) {
  entry.control.abort();
  const at = queue.indexOf(entry);
  if (at < 0) return; // already running: the abort signal ends it
  queue.splice(at, 1);
  entry.view.setMeta("cancelled");
  entry.view.finish("");
}

async function transcribeNext() {
  if (activeFiles >= MAX_CONCURRENT_FILES || !queue.length) return;
  const { file, view, control } = queue.shift();
  activeFiles += 1;
  try {
    await transcribeFile(file, {
      base: location.href,
      key: settings.key,
      options: requestOptions(),
      signal: control.signal,
      on: {
        progress: (fraction, label) => {
          view.setProgress(fraction);
          view.setMeta(label);
        },
        transcript: (transcript) => view.show(transcript),
      },
    });
  } catch (error) {
    if (control.signal.aborted) view.setMeta("cancelled");
    else view.showFailure(error instanceof Failure ? error : new Failure("server", String(error)));
  } finally {
    activeFiles -= 1;
    view.finish(control.signal.aborted ? "" : undefined);
    transcribeNext();
  }
}

byId("open-files").onclick = () => byId("file-input").click();
byId("file-input").onchange = ({ target }) => {
  addFiles(target.files);
  target.value = "";
};

let dragDepth = 0;
const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
addEventListener("dragenter", (event) => {
  if (!hasFiles(event)) return;
  dragDepth += 1;
  document.body.classList.add("dropping");
});
addEventListener("dragleave", (event) => {
  if (!hasFiles(event)) return;
  dragDepth = Math.max(0, dragDepth - 1);
  if (!dragDepth) document.body.classList.remove("dropping");
});
addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  dragDepth = 0;
  document.body.classList.remove("dropping");
  addFiles(event.dataTransfer.files);
});

attachWordTooltip(byId("sessions"), byId("tip"), byId("announcement"));
waveform.draw();
addEventListener("beforeunload", (event) => { if (recording) event.preventDefault(); });
