// One release of a hidden matrix: bound, integers, exact noise ("How the integers are made" in docs/wire-format.md).
//
// The noise is drawn in integers only. Every normal number is the inverse CDF of a uniform number with as many digits as
// are needed to know its cell, with a proved error (src/dp_forward/noise/released/quantiles.py has the proof). No float
// holds signal and noise together. So a release has the ideal law to within 2^-380, if node's crypto.randomBytes is
// uniform and secret. What is NOT here: a ledger, a stored release, and any claim about time: an entry takes as long as
// its digits need. Every call is a fresh release and costs epsilon again.
import { randomBytes } from "node:crypto";
import { bounded, calibrate, logTail } from "./calibrate.mjs";

const MORE = 64n, LONGEST = 450n, PER_UNIT = 8n, FINER = 20n;
const SHRINK = 1 - 1e-13; // more than the rounding of a norm

const abs = (n) => (n < 0n ? -n : n);
const floorDiv = (a, b) => (a % b !== 0n && a < 0n !== b < 0n ? a / b - 1n : a / b);
const up = (a, b) => -floorDiv(-a, b);
const bitLength = (n) => n.toString(2).length;

// A float as an exact fraction [numerator, denominator].
export function fraction(x) {
  let power = 0n;
  while (!Number.isInteger(x)) { x *= 2; power += 1n; }
  return [BigInt(x), 1n << power];
}

function rootFloor(n) {
  if (n < 2n) return n;
  let x = 1n << BigInt((bitLength(n) + 1) >> 1);
  for (;;) {
    const next = (x + n / x) >> 1n;
    if (next >= x) return x;
    x = next;
  }
}

// ---- Tails of the normal law in integers, rounded outwards at both ends ----

function seriesBounds([low, high], [top, bottom], divisor) {
  let sumLow = low, sumHigh = high;
  while (high > 1n || 2n * top > bottom * (divisor - 2n)) {
    low = (low * top) / (bottom * divisor);
    high = up(high * top, bottom * divisor);
    sumLow += low;
    sumHigh += high;
    divisor += 2n;
  }
  return [sumLow, sumHigh + high];
}

function arctanInverse(n, bits) {
  let total = 0n, power = (1n << bits) / n, count = 0n;
  for (; power; count += 1n) {
    const term = power / (2n * count + 1n);
    total += count % 2n ? -term : term;
    power /= n * n;
  }
  return [total - 2n * count - 2n, total + 2n * count + 2n];
}

const roots = new Map();
function rootOfTwoOverPi(bits) {
  if (!roots.has(bits)) {
    const [five, big] = [arctanInverse(5n, bits), arctanInverse(239n, bits)];
    const [low, high] = [16n * five[0] - 4n * big[1], 16n * five[1] - 4n * big[0]];
    const doubled = 2n << (3n * bits);
    roots.set(bits, [rootFloor(doubled / high), rootFloor(up(doubled, low)) + 1n]);
  }
  return roots.get(bits);
}

// floor(2^digits * 2 Q(x)) for x = top / bottom > 0.
function twoTails(top, bottom, digits) {
  if (top * top >= 2n * digits * bottom * bottom) return 0n;
  for (let guard = 64n; ; guard *= 4n) {
    const bits = digits + guard, square = [top * top, bottom * bottom];
    const odd = seriesBounds([(top << bits) / bottom, up(top << bits, bottom)], square, 3n);
    const exp = seriesBounds([1n << bits, 1n << bits], square, 2n);
    const root = rootOfTwoOverPi(bits);
    const low = (1n << bits) - up(root[1] * odd[1], exp[0]);
    const high = (1n << bits) - (root[0] * odd[0]) / exp[1];
    if (low >> guard === high >> guard || guard > 1000n) return low >> guard;
  }
}

// n with n <= 2^bits * 2 Q(x) <= n + 1, for any float x.
function twiceTail(x, bits) {
  if (x === 0) return 1n << bits;
  const outside = twoTails(...fraction(Math.abs(x)), bits);
  return x > 0 ? outside : (2n << bits) - outside - 1n;
}

// About z with 2 Q(z) = number / 2^bits: where Newton's method starts. Nothing rests on how good it is.
function start(number, bits) {
  const shift = Math.max(0, bitLength(number) - 53);
  const wanted = Math.max(Math.log(Number(number >> BigInt(shift))) + (shift - Number(bits) - 1) * Math.LN2, -690);
  let z = 0;
  for (let i = 0; i < 60; i++) {
    const gap = logTail(z) - wanted;
    const slope = Math.exp(Math.max(-745, -0.5 * z * z - 0.5 * Math.log(2 * Math.PI) - logTail(z)));
    z = Math.max(0, z + gap / slope);
    if (Math.abs(gap) < 1e-14 * (1 + Math.abs(wanted))) break;
  }
  return z;
}

// 2^bits * value for a small float.
function scaled(value, bits) {
  const [top, bottom] = fraction(value);
  return (top << bits) / bottom;
}

// z and its error in units of 2^-precision, where 2 Q(z) lies within slack of number, over 2^bits; no error: a guess.
export function quantile(number, slack, bits, precision) {
  let z = start(number < 1n ? 1n : number, bits);
  let working = precision + BigInt(Math.trunc(0.7214 * z * z)) + 10n;
  if (bits > working) working = bits;
  let places = 60n, k = BigInt(Math.trunc(z * 2 ** 60));
  const wanted = number << (working - bits), unknown = (slack << (working - bits)) + 1n;
  for (;;) {
    z = Number(((2n * k + 1n) << 60n) >> (places + 1n)) / 2 ** 60;
    const slope = scaled(Math.sqrt(2 / Math.PI) * Math.exp(-0.5 * z * z), working);
    const step = floorDiv((twoTails(2n * k + 1n, 2n << places, working) - wanted) << precision, slope);
    const spread = (unknown << precision) / slope + 1n;
    const found = ((2n * k + 1n) << (precision - places - 1n)) + step;
    const inUnits = (n) => Number((n << 60n) >> precision) / 2 ** 60 + 2 ** -59;
    const reach = 1.1 * inUnits(abs(step) + spread + 2n);
    if ((z + reach) * reach > 2 ** -5) return [found, null];
    const bend = 1.1 * (z + reach) * reach + 2 ** -40;
    const curved = ((abs(step) * BigInt(Math.ceil(bend * 2 ** 60))) >> 60n) + 1n;
    if (curved <= (spread > 4n ? spread : 4n)) return [found, curved + spread + spread / 16n + 3n];
    places = precision - 1n;
    k = found < 0n ? 0n : found >> 1n;
  }
}

// ---- Uniform words, coins and choices ----

function words(entropy, count) {
  const bytes = entropy(8 * count);
  if (bytes.length !== 8 * count) throw new Error("too little entropy");
  return Array.from({ length: count }, (_, i) => bytes.readBigUInt64LE(8 * i));
}

// floor(2^digits / (1 + others e^-logOdds))
function chanceFloor(logOdds, others, digits) {
  if (logOdds > Number(digits) + bitLength(others)) return (1n << digits) - 1n;
  if (logOdds < -Number(digits)) return 0n;
  const [top, bottom] = fraction(Math.abs(logOdds));
  for (let guard = 64n; ; guard *= 2n) {
    const bits = digits + guard, one = 1n << bits;
    const floors = seriesBounds([one, one], [2n * top, bottom], 2n).map((exp) =>
      (logOdds >= 0 ? (exp << bits) / (exp + others * one) : (one << bits) / (one + others * exp)) >> guard);
    if (floors[0] === floors[1]) return floors[0];
  }
}

function coins(count, logOdds, others, entropy) {
  return words(entropy, count).map((word) => {
    for (let digits = 64n; digits < LONGEST + MORE; digits += MORE) {
      const edge = chanceFloor(logOdds, others, digits);
      if (word !== edge) return word < edge;
      word = (word << MORE) | words(entropy, 1)[0];
    }
    return false;
  });
}

function choices(count, among, entropy) {
  return words(entropy, count).map((word) => {
    for (let digits = 64n; ; digits += MORE) {
      const low = (word * among) >> digits, high = ((word + 1n) * among - 1n) >> digits;
      if (low === high || digits > LONGEST) return low;
      word = (word << MORE) | words(entropy, 1)[0];
    }
  });
}

// ---- The bound ----

const rint = (x) => { const near = Math.round(x); return Math.abs(x % 1) === 0.5 && near % 2 ? near - 1 : near; };

// One vector within the norm; NaN and infinities are 0, and a zero vector has its fixed place.
function within(vector, norm, how) {
  const clean = vector.map((x) => (Number.isFinite(x) ? x : 0));
  const peak = clean.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  if (peak === 0) return clean.map((_, i) => (how === "normalise" && i === 0 ? norm * SHRINK : 0));
  const small = clean.map((x) => x / peak);
  const length = Math.sqrt(small.reduce((sum, x) => sum + x * x, 0));
  if (how === "clip" && peak * length <= norm * SHRINK) return clean;
  return small.map((x) => (x / length) * (norm * SHRINK));
}

// PrivUnit: integers k, never all 0; the direction that is released is k / |k|.
export function direction(vector) {
  const whole = within(vector, 1, "normalise").map((x) => BigInt(rint(x * 2 ** 30)));
  if (whole.every((k) => k === 0n)) whole[0] = 1n;
  return whole;
}

// Gaussian: integers q with sum(q^2) <= floor((norm / fine)^2), checked exactly.
export function quantised(vector, norm, how, fine) {
  const whole = within(vector, norm, how).map((x) => BigInt(Math.trunc(x / fine)));
  const [a, b] = fraction(norm), [c, d] = fraction(fine);
  const limit = (a * d * a * d) / (b * c * b * c), square = whole.reduce((sum, q) => sum + q * q, 0n);
  if (square <= limit) return whole;
  const root = rootFloor(limit), length = rootFloor(square - 1n) + 1n;
  return whole.map((q) => ((q < 0n ? -1n : 1n) * (abs(q) * root)) / length);
}

// K-ary response: the first of the largest scores.
export function decision(scores) {
  const clean = scores.map((x) => (Number.isFinite(x) ? x : 0));
  return clean.indexOf(Math.max(...clean));
}

// ---- The draws ----

// round(8 V) with V = s x + (I - x x^T) G, all of it enclosed until every cell is certain.
function drawPrivUnit(rows, { threshold, cap_log_odds: odds }, entropy) {
  const inCap = coins(rows.length, odds, 1n, entropy);
  const alongs = words(entropy, rows.length);
  const width = rows[0].length;
  const flat = words(entropy, rows.length * width).map((word) => BigInt.asIntN(64, word));
  return rows.map((whole, i) => {
    let along = alongs[i], noise = flat.slice(i * width, (i + 1) * width), digits = 64n;
    for (;;) {
      const cells = enclosed(whole, along, noise, inCap[i], threshold, digits);
      if (cells) return cells;
      digits += MORE;
      const more = words(entropy, 1 + width);
      along = (along << MORE) | more[0];
      noise = noise.map((word, j) => (word << MORE) | more[j + 1]);
    }
  });
}

function enclosed(whole, along, noise, inCap, threshold, digits) {
  const precision = digits - 48n > 64n ? digits - 48n : 64n, final = digits >= LONGEST;
  const normals = noise.map((word) => {
    const [size, error] = quantile(2n * (word < 0n ? ~word : word) + 1n, 1n, digits, precision);
    return [word < 0n ? -size : size, error];
  });
  const t = inCap ? threshold : -threshold;
  const more = BigInt(80 + Math.trunc(0.75 * t * t)) + digits;
  const tail = twiceTail(t, more), bits = more + digits + 1n;
  const number = (2n * along + 1n) * tail, above = number <= 1n << bits;
  const [size, sError] = quantile(above ? number : (2n << bits) - number, tail + 2n * along + 2n, bits, precision);
  const s = above === inCap ? size : -size;
  if (!final && (sError === null || normals.some(([, error]) => error === null))) return null;
  const gErrors = normals.map(([, error]) => (final ? 0n : error));
  const square = whole.reduce((sum, k) => sum + k * k, 0n), places = precision + MORE;
  const root = rootFloor(square << (2n * places));
  const product = whole.reduce((sum, k, j) => sum + k * normals[j][0], 0n);
  const productError = whole.reduce((sum, k, j) => sum + abs(k) * gErrors[j], 0n);
  const cell = (value) => (PER_UNIT * value + (1n << (precision - 1n))) >> precision;
  const cells = whole.map((k, j) => {
    const value = normals[j][0] + floorDiv((s * k) << places, root) - floorDiv(product * k, square);
    const error = final ? 0n
      : gErrors[j] + ((sError * abs(k)) << places) / root + (productError * abs(k)) / square + 6n;
    return cell(value - error) === cell(value + error) ? cell(value) : null;
  });
  return cells.includes(null) ? null : cells;
}

// round(Z), Z ~ N(0, scale^2), of one word: a sign and the digits of V with 2 Q(|Z| / scale) = V.
function roundedNormal(word, [top, bottom], entropy) {
  const negative = word >> 63n === 1n;
  let value = word & ((1n << 63n) - 1n);
  for (let digits = 63n; ; digits += MORE) {
    const precision = digits - 48n > 64n ? digits - 48n : 64n;
    const [z, error] = quantile(2n * value + 1n, 1n, digits + 1n, precision);
    const cell = (at) => (2n * (at < 0n ? 0n : at) * top + (bottom << precision)) / ((2n * bottom) << precision);
    const final = digits >= LONGEST;
    if (final || (error !== null && cell(z - error) === cell(z + error))) return negative ? -cell(z) : cell(z);
    value = (value << MORE) | words(entropy, 1)[0];
  }
}

function drawGaussian(rows, noise, { sigma, step }, entropy) {
  const fine = step / 2 ** Number(FINER), scale = fraction(sigma / fine);
  const signal = rows.map((row) => quantised(row, noise.norm, noise.how, fine)).flat();
  const drawn = words(entropy, signal.length).map((word) => roundedNormal(word, scale, entropy));
  const coarse = signal.map((q, i) => (q + drawn[i] + (1n << (FINER - 1n))) >> FINER);
  const width = rows[0].length;
  return rows.map((_, i) => coarse.slice(i * width, (i + 1) * width));
}

function drawDecisions(rows, noise, entropy) {
  const kinds = BigInt(noise.columns);
  const keep = coins(rows.length, noise.epsilon, kinds - 1n, entropy);
  const others = choices(rows.length, kinds - 1n, entropy);
  return rows.map((row, i) => {
    const own = BigInt(decision(row)), other = others[i] >= own ? others[i] + 1n : others[i];
    return row.map((_, j) => (BigInt(j) === (keep[i] ? own : other) ? 1n : 0n));
  });
}

// The integers of one release, row by row. A fixed `entropy` is for tests: it must be fresh, secret and uniform.
export function release(hidden, noise, bits, entropy = randomBytes) {
  const { byRow } = bounded(noise), numbers = calibrate(noise);
  if (byRow && noise.rows !== null && hidden.length !== noise.rows) throw new Error("another number of rows");
  const rows = byRow ? hidden : [hidden.flat()];
  let drawn;
  if (noise.mechanism === "privunit") drawn = drawPrivUnit(rows.map(direction), numbers, entropy);
  else if (noise.mechanism === "k-ary-response") drawn = drawDecisions(rows, noise, entropy);
  else drawn = drawGaussian(rows, noise, numbers, entropy);
  const most = 2 ** (bits - 1) - 1; // beyond the ends: held at the ends
  return drawn.flat().map((n) => Math.min(most, Math.max(-most - 1, Number(n))));
}
