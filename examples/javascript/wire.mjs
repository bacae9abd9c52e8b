// Frames, records and requests (docs/wire-format.md). All numbers are little-endian.
import { createHash, createHmac, randomBytes } from "node:crypto";
import { calibrate } from "./calibrate.mjs";
import { release } from "./release.mjs";

const MECHANISMS = ["privunit", "matrix-gaussian", "gaussian", "k-ary-response"];
const CUT = /^(embeddings|output|encoder\.1\.qkv|encoder\.[1-9][0-9]*(\.(attention|attn_norm|ffn|ffn_norm))?)$/;
const HEADER = 128;

export class WireError extends Error {
  constructor(code) {
    super(`not taken: ${code}`);
    this.code = code;
  }
}
const demand = (holds, code) => { if (!holds) throw new WireError(code); };

export function packHeader(header) {
  const data = Buffer.alloc(HEADER);
  data.write("DPFW", 0, "ascii");
  data.set([1, header.bits, 1 + MECHANISMS.indexOf(header.mechanism)], 4);
  data.writeUInt32LE(header.rows, 8);
  data.writeUInt32LE(header.width, 12);
  data.writeDoubleLE(header.step, 16);
  data.writeDoubleLE(header.epsilon, 24);
  data.writeDoubleLE(header.delta, 32);
  data.write(header.cut.replace("attention_norm", "attn_norm"), 40, "ascii");
  data.write(header.front, 64, "hex");
  data.write(header.request, 96, "hex");
  data.writeBigUInt64LE(BigInt(header.time), 112);
  return data;
}

// The header and the integers of a frame, or a WireError with the code that a server answers.
export function parseFrame(data) {
  demand(data.length >= HEADER, "length");
  demand(data.toString("latin1", 0, 4) === "DPFW", "magic");
  demand(data[4] === 1, "version");
  const mechanism = MECHANISMS[data[6] - 1];
  demand(mechanism !== undefined, "mechanism");
  demand(data[7] === 0 && data.readBigUInt64LE(120) === 0n, "reserved");
  const word = data.toString("latin1", 40, 64).replace(/\0+$/, "");
  demand(CUT.test(word), "cut");
  const header = {
    bits: data[5],
    mechanism,
    rows: data.readUInt32LE(8),
    width: data.readUInt32LE(12),
    step: data.readDoubleLE(16),
    epsilon: data.readDoubleLE(24),
    delta: data.readDoubleLE(32),
    cut: word.replace("attn_norm", "attention_norm"),
    front: data.toString("hex", 64, 96),
    request: data.toString("hex", 96, 112),
    time: Number(data.readBigUInt64LE(112)),
  };
  const { bits, rows, width, step, epsilon, delta } = header;
  demand(bits === 8 || bits === 16, "dtype");
  demand(rows >= 1 && width >= 1 && rows * width <= 2 ** 24, "shape");
  demand(step >= 2 ** -120 && step <= 2 ** 100, "step");
  demand(epsilon > 0 && epsilon < Infinity, "budget");
  demand(delta >= 0 && delta < 1 && !Object.is(delta, -0), "budget");
  demand((mechanism === "privunit" || mechanism === "k-ary-response") === (delta === 0), "budget");
  demand(header.time < 2 ** 40, "time");
  demand(data.length === HEADER + (rows * width * bits) / 8, "length");
  const values = Array.from({ length: rows * width }, (_, i) =>
    bits === 8 ? data.readInt8(HEADER + i) : data.readInt16LE(HEADER + 2 * i));
  return { header, values };
}

export function packFrame(header, values) {
  const data = Buffer.alloc((values.length * header.bits) / 8);
  values.forEach((n, i) => (header.bits === 8 ? data.writeInt8(n, i) : data.writeInt16LE(n, 2 * i)));
  return Buffer.concat([packHeader(header), data]);
}

const same = (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(Math.abs(a), Math.abs(b));

// What a receiver asks after the format: is it what its manifest says? (The spread of the values is not looked at here.)
export function checkHeader(header, manifest) {
  const { noise } = manifest;
  demand(header.bits === manifest.bits, "dtype");
  demand(header.rows === manifest.matrix_rows && header.width === manifest.width, "shape");
  demand(header.mechanism === noise.mechanism, "mechanism");
  demand(header.cut === manifest.cut, "cut");
  demand(header.front === manifest.front, "front");
  const epsilon = [noise.epsilon, ...manifest.epsilons].find((offered) => same(offered, header.epsilon));
  demand(epsilon !== undefined && same(header.delta, noise.delta), "budget");
  demand(same(header.step, calibrate({ ...noise, epsilon }).step), "step");
}

export const digest = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash("sha256")).digest("hex");

// The digest of a front: of its settings, which name every file of its tokenizer, and of its weights.
export const frontDigest = (settings, weights) =>
  digest(`half.json:${settings.length}\n`, settings, `model.safetensors:${weights.length}\n`, weights);

const labelBytes = (label) => { const data = Buffer.alloc(4); data.writeInt32LE(label ?? -1); return data; };

export const packRecord = (frame, label) => Buffer.concat([frame, labelBytes(label)]);
export const recordDigest = (request, values, label) =>
  digest("dp-forward/record/1\0", Buffer.from(request, "hex"), labelBytes(label), values);

export function recordId(secret, number) {
  const place = Buffer.alloc(8);
  place.writeBigUInt64LE(BigInt(number));
  return createHmac("sha256", secret).update("dp-forward/push/1\0").update(place).digest("hex").slice(0, 32);
}

export function parseRecord(data, labels) {
  demand(data.length >= HEADER + 4, "length");
  const frame = parseFrame(data.subarray(0, -4)), label = data.readInt32LE(data.length - 4);
  demand(frame.header.time === 0, "time");
  demand(labels === null ? label === -1 : label >= 0 && label < labels, "label");
  return { ...frame, label: labels === null ? null : label };
}

// ---- Requests ----

// A client of one server. `policy` is what the user allows: the digest of the user's own front, and the largest epsilon.
export class Client {
  constructor(server, policy, token = null) {
    const url = new URL(server);
    const local = ["127.0.0.1", "localhost", "[::1]"].includes(url.hostname);
    if (url.protocol !== "https:" && !(url.protocol === "http:" && local)) throw new Error("https, or this machine");
    this.address = url.origin;
    this.policy = policy;
    this.headers = token === null ? {} : { authorization: `Bearer ${token}` };
  }

  // The same bytes again after a failure of the network, 408, 429 and 5xx; everything else is final.
  async call(path, body = undefined) {
    const headers = { ...this.headers, ...(body ? { "content-type": "application/octet-stream" } : {}) };
    const init = { method: body ? "POST" : "GET", headers, body, redirect: "error" };
    for (let attempt = 0; ; attempt++) {
      let wait = 250 * 2 ** attempt;
      try {
        const reply = await fetch(this.address + path, { ...init, signal: AbortSignal.timeout(60_000) });
        const page = await reply.json();
        if (reply.status === 200) return page;
        const again = [408, 429].includes(reply.status) || reply.status >= 500;
        if (!again || page.error === "quota") throw new WireError(String(page.error));
        wait = Math.max(wait, 1000 * Number(reply.headers.get("retry-after") ?? 0));
      } catch (error) {
        if (error instanceof WireError || attempt >= 3) throw error;
      }
      if (attempt >= 3) throw new Error("no answer");
      await new Promise((done) => setTimeout(done, Math.min(wait, 10_000)));
    }
  }

  // The manifest, if it asks for a release that the user allows.
  async manifest() {
    const found = await this.call("/v1/manifest");
    if (found.version !== 1 || found.front !== this.policy.front) throw new Error("the server has another front");
    if (!(found.noise.epsilon <= this.policy.epsilon)) throw new Error("the server wants less noise");
    return found;
  }

  // Draw, frame and send one release of a hidden matrix [matrix_rows][width]. It costs the manifest's epsilon.
  async ask(hidden, manifest) {
    const { noise, bits, matrix_rows: rows, width, cut, front, labels } = manifest;
    if (hidden.length !== rows || hidden.some((row) => row.length !== width)) throw new Error("another shape");
    const { step } = calibrate(noise), request = randomBytes(16).toString("hex");
    const time = Math.floor(Date.now() / 1000);
    const { mechanism, epsilon, delta } = noise;
    const header = { bits, mechanism, rows, width, step, epsilon, delta, cut, front, request, time };
    const frame = packFrame(header, release(hidden, noise, bits));
    const answer = await this.call("/v1/answer", frame);
    return { answer: checkAnswer(answer, labels, request), frame: frame.toString("hex") };
  }
}

// An answer to this request about these labels; anything else is refused.
export function checkAnswer(answer, labels, request) {
  const { label, probabilities } = answer, values = labels.map((name) => probabilities?.[name]);
  const sound = values.every((p) => typeof p === "number" && p >= 0 && p <= 1)
    && Object.keys(probabilities).length === labels.length
    && Math.abs(values.reduce((sum, p) => sum + p, 0) - 1) <= 1e-3
    && probabilities[label] === Math.max(...values) && labels.includes(label);
  if (!sound || answer.request !== request) throw new Error("the answer does not fit the request");
  return answer;
}
