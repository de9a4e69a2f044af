// The rolling waveform: a bar every 40 ms, newest at the right. Bars the server has not heard yet are lighter,
// so that lag can be seen. Colours come from the style sheet.

const BAR_S = 0.04;
const STEP_PX = 5;
const BAR_PX = 3;
const KEPT = 1024;

export class Waveform {
  constructor(canvas) {
    this.canvas = canvas;
    this.levels = new Float32Array(KEPT);
    this.count = 0; // bars ever
    this.processedS = 0;
    this.waiting = false;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  reset() {
    this.count = 0;
    this.processedS = 0;
    this.draw();
  }

  add(rms) {
    this.levels[this.count % KEPT] = rms;
    this.count += 1;
    this.draw();
  }

  // How far the server has come, in seconds since the start.
  markProcessed(seconds) {
    this.processedS = Math.max(this.processedS, seconds);
    this.draw();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
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
    const colour = (name) => style.getPropertyValue(name).trim();
    const markProcessed = colour("--accent");
    const unheard = colour("--unheard");
    const quiet = colour("--line");
    const paint = canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    const bars = Math.floor(width / STEP_PX);
    for (let back = 0; back < bars; back += 1) {
      const index = this.count - 1 - back;
      const x = width - (back + 1) * STEP_PX + (STEP_PX - BAR_PX);
      const known = index >= 0 && back < KEPT;
      const loud = known ? loudness(this.levels[index % KEPT]) : 0;
      const tall = Math.max(BAR_PX, loud * (height - 4));
      const waiting = index * BAR_S >= this.processedS;
      paint.fillStyle = !known || loud === 0 ? quiet : waiting ? unheard : markProcessed;
      paint.globalAlpha = Math.min(1, 0.12 + x / (width * 0.3)); // older sound fades out to the left
      paint.beginPath();
      paint.roundRect(x, (height - tall) / 2, BAR_PX, tall, BAR_PX / 2);
      paint.fill();
    }
    paint.globalAlpha = 1;
  }
}

// From -54 dB (nothing) to -6 dB (full height).
export function loudness(rms) {
  if (rms <= 0) return 0;
  return Math.min(1, Math.max(0, (20 * Math.log10(rms) + 54) / 48));
}
