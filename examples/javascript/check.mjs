// Compares this implementation with the vector file; one line of JSON, exit code 1 where something differs.
//
//     node examples/javascript/check.mjs [docs/vectors/wire-v1.json]
import { readFileSync } from "node:fs";
import { calibrate } from "./calibrate.mjs";
import { decision, direction, quantised } from "./release.mjs";
import { WireError, checkHeader, digest, frontDigest, packHeader, parseFrame, parseRecord, recordDigest, recordId } from "./wire.mjs";

const place = process.argv[2] ?? new URL("../../docs/vectors/wire-v1.json", import.meta.url);
const vectors = JSON.parse(readFileSync(place, "utf8"));
const bytes = (hex) => Buffer.from(hex, "hex");
const checked = {}, wrong = [];

function compare(kind, name, found, wanted) {
  checked[kind] = (checked[kind] ?? 0) + 1;
  if (JSON.stringify(found) !== JSON.stringify(wanted)) wrong.push(`${kind}: ${name}`);
}

function codeOf(read) {
  try { read(); } catch (error) { if (error instanceof WireError) return error.code; throw error; }
  return null;
}

for (const { noise, ...wanted } of vectors.noise) {
  const found = calibrate(noise);
  for (const [name, value] of Object.entries(wanted)) {
    const close = Math.abs(found[name] - value) <= 1e-9 * Math.abs(value);
    compare("noise", `${noise.mechanism} ${noise.epsilon} ${name}`, close, true);
  }
}
for (const { hex, ...header } of vectors.headers) {
  compare("headers", header.cut, packHeader(header).toString("hex"), hex);
}
for (const { name, hex, code } of vectors.frames) {
  compare("frames", name, codeOf(() => parseFrame(bytes(hex))), code);
}
for (const { name, hex, code } of vectors.receiver.frames) {
  // The spread of the values is for a server to check.
  const wanted = ["no_noise", "too_much_noise"].includes(code) ? null : code;
  const read = () => checkHeader(parseFrame(bytes(hex)).header, vectors.receiver.manifest);
  compare("receiver", name, codeOf(read), wanted);
}
for (const { noise, hidden, integers, signal_step: fine, largest_square: most, ...rest } of vectors.signals) {
  const named = { nan: NaN, inf: Infinity, "-inf": -Infinity };
  const row = hidden.map((x) => (typeof x === "string" ? named[x] : x)), name = `${noise.mechanism} ${hidden}`;
  if (integers === undefined) { compare("signals", name, decision(row), rest.decision); continue; }
  const found = fine === undefined ? direction(row) : quantised(row, noise.norm, noise.how, fine);
  // A float that lies at the edge of a cell may fall on either side of it.
  compare("signals", name, found.every((n, i) => Math.abs(Number(n) - integers[i]) <= 1), true);
  if (most) compare("signals", `norm of ${name}`, found.reduce((sum, q) => sum + q * q, 0n) <= BigInt(most), true);
}
const front = vectors.front, settings = bytes(front.files["half.json"]);
compare("front", "digest", frontDigest(settings, bytes(front.files["model.safetensors"])), front.digest);
for (const [name, hex] of Object.entries(front.tokenizer_files)) {
  compare("front", name, digest(bytes(hex)), JSON.parse(settings).tokenizer[name]);
}
for (const { name, labels, hex, code, digest: wanted } of vectors.training.records) {
  const data = bytes(hex);
  compare("records", name, codeOf(() => parseRecord(data, labels)), code);
  if (code !== null) continue;
  const { header, label } = parseRecord(data, labels);
  compare("records", `digest of ${name}`, recordDigest(header.request, data.subarray(128, -4), label), wanted);
}
const { secret, ids } = vectors.training.ids;
for (const [number, id] of Object.entries(ids)) compare("ids", number, recordId(bytes(secret), number), id);

console.log(JSON.stringify({ checked, wrong }));
process.exitCode = wrong.length ? 1 : 0;
