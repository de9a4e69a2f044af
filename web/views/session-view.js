// One recording or file on the page: a heading with its actions, closed lines, and the partial. Text is inserted through
// textContent only. Closed lines are never redrawn.

import { FORMATS, formatDuration, toText } from "../session/export.js";

export const VERY_LOW_CONFIDENCE = 0.5;
export const LOW_CONFIDENCE = 0.75;

export function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

export class SessionView {
  // on: {cancel(), remove(), lineClosed(words)}. `cancellable` is for files, which also show their progress.
  constructor({ title, on, cancellable = false }) {
    this.title = title;
    this.on = on;
    this.transcript = null;
    this.drawnLines = []; // per line: {node, words, paragraph, count, open, announced}
    this.closedLines = 0; // the first so many of them need no update
    this.meta = element("p", { className: "meta" });
    this.lines = element("div", { className: "lines", tabIndex: -1 });
    this.lines.setAttribute("role", "group");
    this.lines.setAttribute("aria-label", `Transcript of ${title}. Arrow keys read the confidence of each word.`);
    this.remark = element("p", { className: "remark", hidden: true });
    this.remark.setAttribute("role", "status");
    this.placeholder = element("p", { className: "placeholder", hidden: true });
    this.placeholder.setAttribute("role", "status");
    this.bar = element("div");
    this.progressbar = element("div", { className: "progress", hidden: !cancellable }, this.bar);
    this.progressbar.setAttribute("role", "progressbar");
    this.progressbar.setAttribute("aria-label", `Progress of ${title}`);
    this.actions = element("div", { className: "actions" });
    this.actions.setAttribute("role", "group");
    this.actions.setAttribute("aria-label", `Actions for ${title}`);
    this.partialLine = null;
    this.node = element("section", { className: "session" },
      element("header", {}, element("h2", { textContent: title, title }), this.meta, this.actions),
      this.progressbar, this.remark, this.placeholder, this.lines);
    this.node.setAttribute("aria-label", title);
    this.cancelButton = this.button("Cancel", () => on.cancel());
    this.cancelButton.hidden = !cancellable;
    const copy = this.button("Copy", (button) => this.copy(button));
    const downloads = element("div", { className: "downloads" }, element("span", { textContent: "Save", ariaHidden: "true" }));
    this.actions.append(downloads);
    for (const format of Object.keys(FORMATS)) {
      downloads.append(this.button(format, () => this.download(format), `Download as ${format}`));
    }
    this.exportControls = [copy, downloads];
    this.removeButton = this.button("×", () => on.remove(), "Remove");
    this.removeButton.hidden = true;
    for (const each of this.exportControls) each.hidden = true;
  }

  button(label, onclick, title = label) {
    const button = element("button", { type: "button", className: "quiet", textContent: label, title });
    if (title !== label) button.setAttribute("aria-label", title);
    button.onclick = () => onclick(button);
    this.actions.append(button);
    return button;
  }

  // The text next to the title: duration, progress or state.
  setMeta(text) {
    this.meta.textContent = text;
  }

  // A remark about the whole transcript, such as missing audio.
  setRemark(text) {
    this.remark.hidden = !text;
    if (this.remark.textContent !== text) this.remark.textContent = text;
  }

  // Text in place of the transcript while it is empty.
  setPlaceholder(text) {
    const empty = !this.lines.childElementCount;
    this.placeholder.hidden = !empty;
    if (empty && this.placeholder.textContent !== text) this.placeholder.textContent = text;
  }

  // Shows the failure inside this session, so that other files are not affected.
  showFailure(failure) {
    this.setMeta("failed");
    const notice = element("div", { className: "session-failure" }, element("strong", { textContent: failure.message }), " ", failure.advice);
    if (failure.detail) {
      notice.append(element("details", {}, element("summary", { textContent: "Details" }), element("code", { textContent: failure.detail })));
    }
    notice.setAttribute("role", "alert");
    this.failure = notice;
    this.placeholder.before(notice);
  }

  // fraction: 0..1, or null if unknown.
  setProgress(fraction) {
    this.bar.style.width = `${Math.round((fraction ?? 0) * 100)}%`;
    if (fraction === null) this.progressbar.removeAttribute("aria-valuenow");
    else this.progressbar.setAttribute("aria-valuenow", String(Math.round(fraction * 100)));
  }

  // Ends the session; `placeholder` is shown if the transcript is empty.
  finish(placeholder = "No speech was recognized.") {
    this.cancelButton.hidden = true;
    this.progressbar.hidden = true;
    this.removeButton.hidden = false;
    this.placeholder.hidden = true;
    if (placeholder && !this.failure) this.setPlaceholder(placeholder);
  }

  show(transcript) {
    this.transcript = transcript;
    // Closed lines are skipped, so the cost of an update does not grow with the transcript.
    while (this.drawnLines[this.closedLines]?.announced) this.closedLines += 1;
    for (let index = this.closedLines; index < transcript.lines.length; index += 1) this.drawLine(index, transcript.lines[index]);
    this.drawPartial(transcript.partial);
    const any = transcript.lines.length > 0;
    for (const each of this.exportControls) each.hidden = !any;
    if (any) this.lines.tabIndex = 0;
    if (this.lines.childElementCount) this.placeholder.hidden = true;
  }

  drawLine(index, line) {
    let drawn = this.drawnLines[index];
    if (!drawn) {
      const row = this.row(line.words[0].startS);
      this.lines.insertBefore(row.node, this.partialLine?.node ?? null);
      drawn = { ...row, count: 0, announced: false };
      this.drawnLines.push(drawn);
    }
    for (; drawn.count < line.words.length; drawn.count += 1) {
      drawn.words.append(drawn.count ? " " : "", wordNode(line.words[drawn.count]));
    }
    drawn.node.classList.toggle("interim", Boolean(line.interim));
    drawn.open = !line.closed;
    if (line.closed && !drawn.announced) {
      drawn.announced = true;
      this.on.lineClosed(line.words);
    }
  }

  row(startS) {
    const words = element("span");
    const paragraph = element("p", {}, words);
    const time = element("time", { textContent: formatDuration(startS), dateTime: `PT${startS.toFixed(2)}S` });
    return { node: element("div", { className: "line" }, time, paragraph), words, paragraph };
  }

  // Appends the partial to the last line if that is open, otherwise shows it on its own line.
  drawPartial(partial) {
    this.partialNode?.remove();
    this.partialNode = null;
    const last = this.drawnLines.at(-1);
    const continues = last?.open;
    if (this.partialLine && (!partial || continues)) {
      this.partialLine.node.remove();
      this.partialLine = null;
    }
    if (!partial) return;
    const { words, stableWords } = partial;
    const node = element("span", { className: "partial" });
    node.setAttribute("aria-hidden", "true");
    const join = (some) => some.map((word) => word.text).join(" ");
    const stable = element("span", { className: "stable", textContent: join(words.slice(0, stableWords)) });
    node.append(continues ? " " : "", stable, stableWords && stableWords < words.length ? " " : "", join(words.slice(stableWords)));
    if (continues) last.paragraph.append(node);
    else {
      if (!this.partialLine) {
        this.partialLine = this.row(words[0].startS);
        this.lines.append(this.partialLine.node);
      }
      this.partialLine.paragraph.append(node);
    }
    this.partialNode = node;
  }

  async copy(button) {
    const text = toText(this.transcript);
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  download(format) {
    const { type, serialize } = FORMATS[format];
    const url = URL.createObjectURL(new Blob([serialize(this.transcript)], { type: `${type};charset=utf-8` }));
    const name = this.title.replace(/\.[a-z0-9]{1,5}$/i, "").replace(/[^\p{L}\p{N} ._-]+/gu, "-").trim() || "transcript";
    const link = element("a", { href: url, download: `${name}.${format}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
}

function wordNode(word) {
  const node = element("span", { className: "word", textContent: word.text });
  node.dataset.details = wordDetails(word);
  if (word.confidence < VERY_LOW_CONFIDENCE) node.dataset.confidence = "very-low";
  else if (word.confidence < LOW_CONFIDENCE) node.dataset.confidence = "low";
  return node;
}

export function wordDetails(word) {
  const times = `${word.startS.toFixed(2)} – ${word.endS.toFixed(2)} s`;
  return word.confidence === undefined ? times : `${Math.round(word.confidence * 100)} % confidence, ${times}`;
}
