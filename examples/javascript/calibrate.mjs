// From the choice of noise in a manifest to its numbers ("From the choice of noise to its numbers" in docs/wire-format.md).

const LOG_ROOT_2PI = 0.5 * Math.log(2 * Math.PI);
const SPREAD = 2.5; // from here on the continued fraction is as good as a float

// x + 2/(x + 3/(x + 4/...)): the inner part of Laplace's continued fraction, for x >= SPREAD.
function laplace(x) {
  let tail = x;
  for (let k = 300; k > 1; k--) tail = x + k / tail;
  return tail;
}

// Mills' ratio Q(x) / phi(x), with Q the upper tail of the normal law.
export function mills(x) {
  if (x >= SPREAD) return 1 / (x + 1 / laplace(x));
  if (x < 0) return Math.exp(0.5 * x * x + LOG_ROOT_2PI) - mills(-x);
  let term = x, sum = x; // x + x^3/3 + x^5/15 + ...
  for (let n = 3; term > 1e-18 * sum; n += 2) sum += term *= (x * x) / n;
  return 0.5 * Math.exp(0.5 * x * x + LOG_ROOT_2PI) - sum;
}

const logPhi = (x) => -0.5 * x * x - LOG_ROOT_2PI;
export const logTail = (x) => (x >= 0 ? logPhi(x) + Math.log(mills(x)) : Math.log1p(-Math.exp(logTail(-x))));
const logAdd = (a, b) => Math.max(a, b) + Math.log1p(Math.exp(-Math.abs(a - b)));
const expit = (x) => 1 / (1 + Math.exp(-x));

// The last point of [low, high] at which `holds`, found by halving.
function last(low, high, holds) {
  for (;;) {
    const middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) return low;
    if (holds(middle)) low = middle; else high = middle;
  }
}

const meanScale = (epsilon, t) =>
  -Math.expm1(-epsilon) * Math.exp(logPhi(t) - logAdd(logTail(-t) - epsilon, logTail(t)));

function privunit(noise, vectors) {
  const epsilon = noise.epsilon / vectors;
  const best = last(0, Math.sqrt(2 * epsilon) + 3, (t) => meanScale(epsilon, t) >= t);
  const threshold = noise.threshold_share === null ? best : noise.threshold_share * best;
  const inside = logTail(threshold), outside = logTail(-threshold);
  let odds = epsilon - (outside - inside);
  // Lowered by more than every rounding above: the promise never passes the budget.
  odds -= 4e-13 * (Math.abs(odds) + Math.abs(inside) + Math.abs(outside) + epsilon);
  const scale = meanScale(epsilon, threshold);
  const step = noise.norm / scale / 8;
  return { threshold, cap_log_odds: odds, cap_probability: expit(odds), scale, step };
}

// log delta(epsilon) of N(0, 1) against N(mu, 1), without cancellation.
function logDelta(epsilon, mu) {
  const a = mu / 2 - epsilon / mu;
  if (mu < (1 + Math.abs(a)) / 2) {
    // M(-a) - M(-a + mu) as the integral of 1 - x M(x), by Simpson's rule.
    const slope = (x) => (x >= SPREAD ? 1 / (1 + x * laplace(x)) : 1 - x * mills(x));
    const parts = 512, h = mu / parts;
    let sum = slope(-a) + slope(mu - a);
    for (let i = 1; i < parts; i++) sum += (i % 2 ? 4 : 2) * slope(-a + i * h);
    return logPhi(a) + Math.log((sum * h) / 3);
  }
  if (a <= 0) return logPhi(a) + Math.log(mills(-a) - mills(mu - a));
  return Math.log1p(-Math.exp(logAdd(logTail(a), logPhi(a) + Math.log(mills(mu - a)))));
}

function gaussian(noise, vectors) {
  const sensitivity = 2 * noise.norm * Math.sqrt(vectors);
  const wanted = Math.log(noise.delta) - 2e-10; // a margin on the safe side
  let high = 1;
  while (logDelta(noise.epsilon, high) <= wanted) high *= 2;
  const sigma = sensitivity / last(0, high, (mu) => logDelta(noise.epsilon, mu) <= wanted);
  // The greatest power of two that is at most sigma / 8.
  let step = 1;
  while (step > sigma / 8) step /= 2;
  while (2 * step <= sigma / 8) step *= 2;
  return { sensitivity, sigma, step };
}

// How many vectors, each bounded by itself, two neighbours can differ in; whether it is row by row.
export function bounded(noise) {
  if (noise.unit === "text" || noise.unit === "record") return { byRow: false, vectors: 1 };
  const tokens = noise.unit === "token" ? 1 : Number(noise.unit.slice("phrase:".length));
  return { byRow: true, vectors: Math.min(tokens, noise.rows ?? tokens) };
}

export function calibrate(noise) {
  const { vectors } = bounded(noise);
  const budget = { epsilon: noise.epsilon, delta: noise.delta };
  if (noise.mechanism === "privunit") return { ...privunit(noise, vectors), ...budget };
  if (noise.mechanism === "k-ary-response") {
    const keep_probability = 1 / (1 + (noise.columns - 1) * Math.exp(-noise.epsilon));
    return { keep_probability, step: 1, ...budget };
  }
  if (noise.mechanism === "gaussian" || noise.mechanism === "matrix-gaussian") {
    return { ...gaussian(noise, vectors), ...budget };
  }
  throw new Error("this noise cannot be released");
}
