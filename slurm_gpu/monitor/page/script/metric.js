// Convert octets of metrics to values and texts. A metric has equal steps or, with a `curve`, logarithmic ones: steps are
// equal up to about the value of the curve, and above it, each is the same percentage of the value.

import { GAP } from "./paint.js";
import * as words from "./words.js";

const LAST = 254; // the octet of the top of a metric with a curve

export function valueOf(octet, { step, curve, top }) {
  if (octet === GAP) return null;
  return curve === undefined ? octet * step : curve * Math.expm1(octet / LAST * Math.log1p(top / curve));
}

// Return the octet of a value on a curve, rounded up; values over the top have the octet of the top.
export function octetOf(value, { curve, top }) {
  const share = Math.log1p(Math.max(0, value) / curve) / Math.log1p(top / curve);
  return Math.min(LAST, Math.ceil(share * LAST));
}

export const lastOctet = ({ step, curve, top }) => (curve === undefined ? Math.min(LAST, Math.round(top / step)) : LAST);

// Format a value with its unit, and hours as a duration.
export const textOf = (value, { unit }) => (unit === "h" ? words.duration(3600 * value) : words.amount(value, unit));

// Format a value for a square or a table cell, without a unit unless it is a duration.
export function briefOf(value, { unit }) {
  if (value === null || unit !== "h") return words.amount(value, "");
  if (value < 1) return `${Math.round(60 * value)}m`;
  return value < 24 ? `${Math.round(value)}h` : `${Math.round(value / 24)}d`;
}
