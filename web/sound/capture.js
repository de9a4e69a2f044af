// The microphone: asks for it, runs the worklet, hands out 16 kHz blocks. Every refusal becomes a Failure code.

import { Failure } from "../session/failures.js";

const FLUSH_MS = 1000; // an audio thread that answers no longer than this is given up
const WORKLET = new URL("./capture-worklet.js", import.meta.url);

export async function listMicrophones() {
  if (!navigator.mediaDevices?.enumerateDevices) return [];
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices
    .filter((device) => device.kind === "audioinput" && device.deviceId)
    .map((device, index) => ({ id: device.deviceId, label: device.label || `Microphone ${index + 1}` }));
}

// Starts capture. `onSound({pcm, rms, peak})` gets every 40 ms, `onLost(code)` is told when the device goes away.
// `raw` switches the browser's own echo cancelling, noise suppression and gain control off.
export async function openMicrophone({ deviceId = "", raw = true, onSound, onLost, onGap = () => {} }) {
  if (!window.isSecureContext) throw new Failure("insecure");
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) throw new Failure("unsupported");
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({
      audio: {
        ...(deviceId ? { deviceId: { exact: deviceId } } : {}),
        channelCount: { ideal: 1 },
        echoCancellation: !raw,
        noiseSuppression: !raw,
        autoGainControl: !raw,
      },
    });
  } catch (error) {
    throw new Failure(codeOf(error), error.message);
  }
  const context = new AudioContext({ latencyHint: "interactive" }); // the device's own rate
  try {
    await context.audioWorklet.addModule(WORKLET);
    await context.resume();
  } catch (error) {
    for (const track of stream.getTracks()) track.stop();
    await context.close();
    throw new Failure("unsupported", error.message);
  }
  const source = context.createMediaStreamSource(stream);
  const capture = new AudioWorkletNode(context, "silica-capture", { numberOfInputs: 1, numberOfOutputs: 0 });
  let ended;
  const allSent = new Promise((resolve) => { ended = resolve; });
  capture.port.onmessage = ({ data }) => {
    if (data.type === "sound") onSound(data);
    else if (data.type === "gap") onGap(data.frames / context.sampleRate);
    else if (data.type === "ended") ended(data);
  };
  source.connect(capture);
  const [track] = stream.getAudioTracks();
  track.addEventListener("ended", () => onLost("device-lost"));

  const stop = async () => {
    capture.port.postMessage("stop");
    await Promise.race([allSent, new Promise((resolve) => { setTimeout(resolve, FLUSH_MS); })]);
    source.disconnect();
    for (const each of stream.getTracks()) each.stop();
    await context.close();
  };
  let stopped = null;
  return {
    rate: context.sampleRate,
    label: track.label,
    // Resolves when the last sample has been handed to onSound; asking twice is as good as once.
    stop() {
      stopped ??= stop();
      return stopped;
    },
  };
}

function codeOf(error) {
  switch (error.name) {
    case "NotAllowedError":
    case "SecurityError":
      return "permission";
    case "NotFoundError":
    case "OverconstrainedError":
      return "no-device";
    case "NotReadableError":
    case "AbortError":
      return "device-busy";
    default:
      return "unsupported";
  }
}
