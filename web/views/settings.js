// The settings dialog: microphone, model, hotwords, options, API key. Stored in this browser; the key for this tab only.

import { listMicrophones } from "../audio/capture.js";

const TEXT_FIELDS = ["microphone", "model", "hotwords"];

function load(storage, name) {
  try {
    return storage.getItem(`silica.${name}`) ?? "";
  } catch {
    return ""; // storage may be blocked; the page works without it
  }
}

function save(storage, name, value) {
  try {
    storage.setItem(`silica.${name}`, value);
  } catch { /* see load */ }
}

export class Settings {
  constructor(dialog) {
    this.dialog = dialog;
    this.field = (id) => dialog.querySelector(`#${id}`);
    this.onchange = () => {};
    this.selected = { microphone: load(localStorage, "microphone"), model: load(localStorage, "model") };
    this.field("hotwords").value = load(localStorage, "hotwords");
    this.field("key").value = load(sessionStorage, "key");
    this.field("browser-processing").checked = load(localStorage, "browserProcessing") === "yes";
    this.field("smart-format").checked = load(localStorage, "smartFormat") !== "no";
    this.field("highlight-uncertain").checked = load(localStorage, "highlightUncertain") === "yes";
    dialog.addEventListener("change", () => this.saveAll());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    navigator.mediaDevices?.addEventListener?.("devicechange", () => this.fillMicrophones());
  }

  get microphone() { return this.field("microphone").value; }
  get model() { return this.field("model").value; }
  get hotwords() { return this.field("hotwords").value; }
  get key() { return this.field("key").value.trim(); }
  get browserProcessing() { return this.field("browser-processing").checked; }
  get smartFormat() { return this.field("smart-format").checked; }
  get highlightUncertain() { return this.field("highlight-uncertain").checked; }

  open() {
    this.fillMicrophones();
    this.dialog.showModal();
  }

  saveAll() {
    for (const name of TEXT_FIELDS) save(localStorage, name, this.field(name).value);
    for (const name of ["browserProcessing", "smartFormat", "highlightUncertain"]) {
      save(localStorage, name, this[name] ? "yes" : "no");
    }
    save(sessionStorage, "key", this.key);
    this.selected = { microphone: this.microphone, model: this.model };
    this.onchange();
  }

  async fillMicrophones() {
    const found = await listMicrophones().catch(() => []);
    fillOptions(this.field("microphone"), found.map(({ id, label }) => [id, label]), this.selected.microphone);
  }

  async fillModels(base) {
    try {
      const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
      const response = await fetch(new URL("/v1/models", base), { headers });
      if (!response.ok) return;
      const { data } = await response.json();
      fillOptions(this.field("model"), data.map(({ id }) => [id, id]), this.selected.model);
    } catch { /* without the list, the server's default model is used */ }
  }
}

// Replaces all options but the first (the default). Selects `selected` if it is available, otherwise the default.
function fillOptions(select, options, selected) {
  while (select.options.length > 1) select.remove(1);
  for (const [value, text] of options) select.add(new Option(text, value));
  select.value = options.some(([value]) => value === selected) ? selected : "";
}
