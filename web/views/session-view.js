// One recording or file on the page: a heading with its actions, settled lines, and the words still open.
// Draws what it is given; text goes in by textContent only. Settled lines are never touched again.

import { FORMATS, minutes, toText } from "../session/export.js";

export const VERY_LOW_CONFIDENCE = 0.5;
export const LOW_CONFIDENCE = 0.75;

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export class SessionView {
  // on: {cancel, remove, say(words)}. `cancellable` for files, which show their progress.
  constructor({ title, on, cancellable = false }) {
    this.title = title;
    this.on = on;
    this.transcript = null;
    this.drawn = []; // per line: {node, words} as they stand on the page
    this.finished = 0; // so many of them are closed
    this.meta = element("p", { className: "meta" });
    this.lines = element("div", { className: "lines", tabIndex: -1 });
    this.lines.setAttribute("role", "group");
    this.lines.setAttribute("aria-label", `Words of ${title}; with the arrow keys, how sure each is`);
    this.remark = element("p", { className: "remark", hidden: true });
    this.remark.setAttribute("role", "status");
    this.hintLine = element("p", { className: "nothing", hidden: true });
    this.hintLine.setAttribute("role", "status");
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
      this.progressbar, this.remark, this.hintLine, this.lines);
    this.node.setAttribute("aria-label", title);
    this.cancelButton = this.button("Cancel", () => on.cancel());
    this.cancelButton.hidden = !cancellable;
    const copy = this.button("Copy", (button) => this.copy(button));
    const saving = element("div", { className: "saving" }, element("span", { textContent: "Save", ariaHidden: "true" }));
    this.actions.append(saving);
    for (const format of Object.keys(FORMATS)) {
      saving.append(this.button(format, () => this.download(format), `Download as ${format}`));
    }
    this.writers = [copy, saving];
    this.removeButton = this.button("×", () => on.remove(), "Remove");
    this.removeButton.hidden = true;
    for (const each of this.writers) each.hidden = true;
  }

  button(label, onclick, title = label) {
    const made = element("button", { type: "button", className: "quiet", textContent: label, title });
    if (title !== label) made.setAttribute("aria-label", title);
    made.onclick = () => onclick(made);
    this.actions.append(made);
    return made;
  }

  note(text) {
    this.meta.textContent = text;
  }

  // What happened on the way and should be known of this transcript.
  mention(text) {
    this.remark.hidden = !text;
    if (this.remark.textContent !== text) this.remark.textContent = text;
  }

  // What to do, or what is awaited, as long as there are no words.
  hint(text) {
    const none = !this.lines.childElementCount;
    this.hintLine.hidden = !none;
    if (none && this.hintLine.textContent !== text) this.hintLine.textContent = text;
  }

  // What kept this file from being read stands with the file, not over the others.
  failed(failure) {
    this.note("failed");
    const notice = element("div", { className: "trouble" }, element("strong", { textContent: failure.message }), " ", failure.advice);
    if (failure.detail) {
      notice.append(element("details", {}, element("summary", { textContent: "What the machine said" }), element("code", { textContent: failure.detail })));
    }
    notice.setAttribute("role", "alert");
    this.trouble = notice;
    this.hintLine.before(notice);
  }

  // share: 0..1, or null for "cannot be known".
  progress(share) {
    this.bar.style.width = `${Math.round((share ?? 0) * 100)}%`;
    if (share === null) this.progressbar.removeAttribute("aria-valuenow");
    else this.progressbar.setAttribute("aria-valuenow", String(Math.round(share * 100)));
  }

  ended(nothing = "No words were heard.") {
    this.cancelButton.hidden = true;
    this.progressbar.hidden = true;
    this.removeButton.hidden = false;
    this.hintLine.hidden = true;
    if (nothing && !this.trouble) this.hint(nothing);
  }

  show(transcript) {
    this.transcript = transcript;
    // What is closed and drawn never changes: an hour's transcript costs no more than a minute's.
    while (this.drawn[this.finished]?.said) this.finished += 1;
    for (let index = this.finished; index < transcript.lines.length; index += 1) this.drawLine(index, transcript.lines[index]);
    this.drawPartial(transcript.partial);
    const any = transcript.lines.length > 0;
    for (const each of this.writers) each.hidden = !any;
    if (any) this.lines.tabIndex = 0;
    if (this.lines.childElementCount) this.hintLine.hidden = true;
  }

  drawLine(index, line) {
    let drawn = this.drawn[index];
    if (!drawn) {
      const row = this.row(line.words[0].startS);
      this.lines.insertBefore(row.node, this.partialLine?.node ?? null);
      drawn = { ...row, count: 0, said: false };
      this.drawn.push(drawn);
    }
    for (; drawn.count < line.words.length; drawn.count += 1) {
      drawn.settled.append(drawn.count ? " " : "", wordNode(line.words[drawn.count]));
    }
    drawn.node.classList.toggle("unsettled", Boolean(line.unsettled));
    drawn.open = !line.closed;
    if (line.closed && !drawn.said) {
      drawn.said = true;
      this.on.say(line.words);
    }
  }

  row(startS) {
    const settled = element("span");
    const paragraph = element("p", {}, settled);
    const node = element("div", { className: "line" }, element("time", { textContent: minutes(startS), dateTime: `PT${startS.toFixed(2)}S` }), paragraph);
    return { node, settled, paragraph };
  }

  // Open words stand behind the last line while it is open, otherwise on a line of their own.
  drawPartial(partial) {
    this.partialNode?.remove();
    this.partialNode = null;
    const last = this.drawn.at(-1);
    const goesOn = last?.open;
    if (this.partialLine && (!partial || goesOn)) {
      this.partialLine.node.remove();
      this.partialLine = null;
    }
    if (!partial) return;
    const { words, stableWords } = partial;
    const node = element("span", { className: "partial" });
    node.setAttribute("aria-hidden", "true");
    const join = (some) => some.map((word) => word.text).join(" ");
    const stable = element("span", { className: "stable", textContent: join(words.slice(0, stableWords)) });
    node.append(goesOn ? " " : "", stable, stableWords && stableWords < words.length ? " " : "", join(words.slice(stableWords)));
    if (goesOn) last.paragraph.append(node);
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
    const { type, write } = FORMATS[format];
    const address = URL.createObjectURL(new Blob([write(this.transcript)], { type: `${type};charset=utf-8` }));
    const name = this.title.replace(/\.[a-z0-9]{1,5}$/i, "").replace(/[^\p{L}\p{N} ._-]+/gu, "-").trim() || "transcript";
    const link = element("a", { href: address, download: `${name}.${format}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }
}

function wordNode(word) {
  const node = element("span", { className: "word", textContent: word.text });
  node.dataset.about = aboutWord(word);
  if (word.confidence < VERY_LOW_CONFIDENCE) node.dataset.doubt = "much";
  else if (word.confidence < LOW_CONFIDENCE) node.dataset.doubt = "some";
  return node;
}

export function aboutWord(word) {
  const times = `${word.startS.toFixed(2)} – ${word.endS.toFixed(2)} s`;
  return word.confidence === undefined ? times : `${Math.round(word.confidence * 100)} % sure, ${times}`;
}
