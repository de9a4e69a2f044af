// The settings dialog: microphone, model, hotwords, key. Kept in this browser; the key only until the tab closes.

import { listMicrophones } from "../sound/capture.js";

const KEPT = ["microphone", "model", "hotwords"];

function stored(store, name) {
  try {
    return store.getItem(`silica.${name}`) ?? "";
  } catch {
    return ""; // storage may be forbidden; the page works without
  }
}

function store(where, name, value) {
  try {
    where.setItem(`silica.${name}`, value);
  } catch { /* see above */ }
}

export class Settings {
  constructor(dialog) {
    this.dialog = dialog;
    this.field = (name) => dialog.querySelector(`#${name}`);
    this.onchange = () => {};
    this.selected = { microphone: stored(localStorage, "microphone"), model: stored(localStorage, "model") };
    this.field("hotwords").value = stored(localStorage, "hotwords");
    this.field("key").value = stored(sessionStorage, "key");
    this.field("processing").checked = stored(localStorage, "processing") === "yes";
    this.field("written").checked = stored(localStorage, "written") !== "no";
    this.field("doubts").checked = stored(localStorage, "doubts") === "yes";
    dialog.addEventListener("change", () => this.keep());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    navigator.mediaDevices?.addEventListener?.("devicechange", () => this.fillMicrophones());
  }

  get microphone() { return this.field("microphone").value; }
  get model() { return this.field("model").value; }
  get hotwords() { return this.field("hotwords").value; }
  get key() { return this.field("key").value.trim(); }
  get processing() { return this.field("processing").checked; }
  get written() { return this.field("written").checked; }
  get doubts() { return this.field("doubts").checked; }

  open() {
    this.fillMicrophones();
    this.dialog.showModal();
  }

  keep() {
    for (const name of KEPT) store(localStorage, name, this.field(name).value);
    store(localStorage, "processing", this.processing ? "yes" : "no");
    store(localStorage, "written", this.written ? "yes" : "no");
    store(localStorage, "doubts", this.doubts ? "yes" : "no");
    store(sessionStorage, "key", this.key);
    this.selected = { microphone: this.microphone, model: this.model };
    this.onchange();
  }

  async fillMicrophones() {
    const found = await listMicrophones().catch(() => []);
    fill(this.field("microphone"), found.map(({ id, label }) => [id, label]), this.selected.microphone);
  }

  // Names only; a server without the list keeps its own choice.
  async fillModels(base) {
    try {
      const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
      const answer = await fetch(new URL("/v1/models", base), { headers });
      if (!answer.ok) return;
      const { data } = await answer.json();
      fill(this.field("model"), data.map(({ id }) => [id, id]), this.selected.model);
    } catch { /* the page works without the list */ }
  }
}

// The first option (no choice) stays; a wish that is not on offer is forgotten for now.
function fill(select, options, selected) {
  while (select.options.length > 1) select.remove(1);
  for (const [value, text] of options) select.add(new Option(text, value));
  select.value = options.some(([value]) => value === selected) ? selected : "";
}
