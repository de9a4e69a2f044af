// The rolling waveform: one bar per 40 ms block, newest at the right. Bars that the server has not processed yet are
// gray, which makes lag visible. Colors come from the style sheet.

const BAR_S = 0.04;
const STEP_PX = 5;
const BAR_PX = 3;
const MAX_BARS = 1024;
const FLOOR_DB = -54; // height 0
const FULL_DB = -6; // full height

export class Waveform {
  constructor(canvas) {
    this.canvas = canvas;
    this.levels = new Float32Array(MAX_BARS); // ring buffer of RMS values
    this.count = 0; // bars added in total
    this.processedS = 0;
    this.drawPending = false;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  reset() {
    this.count = 0;
    this.processedS = 0;
    this.draw();
  }

  add(rms) {
    this.levels[this.count % MAX_BARS] = rms;
    this.count += 1;
    this.draw();
  }

  // Seconds of the recording that the server has processed.
  setProcessed(seconds) {
    this.processedS = Math.max(this.processedS, seconds);
    this.draw();
  }

  draw() {
    if (this.drawPending) return;
    this.drawPending = true;
    requestAnimationFrame(() => {
      this.drawPending = false;
      this.paint();
    });
  }

  paint() {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const processed = color("--accent");
    const pending = color("--pending");
    const empty = color("--line");
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const bars = Math.floor(width / STEP_PX);
    for (let back = 0; back < bars; back += 1) {
      const index = this.count - 1 - back;
      const x = width - (back + 1) * STEP_PX + (STEP_PX - BAR_PX);
      const level = index >= 0 && back < MAX_BARS ? barHeight(this.levels[index % MAX_BARS]) : 0;
      const barPx = Math.max(BAR_PX, level * (height - 4));
      context.fillStyle = level === 0 ? empty : index * BAR_S >= this.processedS ? pending : processed;
      context.globalAlpha = Math.min(1, 0.12 + x / (width * 0.3)); // older bars fade out to the left
      context.beginPath();
      context.roundRect(x, (height - barPx) / 2, BAR_PX, barPx, BAR_PX / 2);
      context.fill();
    }
    context.globalAlpha = 1;
  }
}

// Maps an RMS value to a height between 0 and 1, linear in decibels.
export function barHeight(rms) {
  if (rms <= 0) return 0;
  return Math.min(1, Math.max(0, (20 * Math.log10(rms) - FLOOR_DB) / (FULL_DB - FLOOR_DB)));
}
