// Compute the colours of squares from palette.js. Anchors are interpolated in OKLab, where equal steps appear
// equal. Colours are numbers as in the ImageData of a canvas on a little-endian machine: 0xAABBGGRR.

import { KINDS, OWN_FROM, SEQUENTIAL, STATES } from "./palette.js";

// The media query for colours on a dark background. Printed pages use the colours on a light background.
export const DARK = "screen and (prefers-color-scheme: dark)";

export const pack = ([red, green, blue]) => (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
export const parse = (text) => {
  const hex = text.trim().slice(1);
  const full = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
  return [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16));
};
export const css = (colour) => `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;

// Mix a share of one colour with the remaining share of another.
export function mixed(colour, other, share) {
  const part = (shift) => Math.round(((colour >> shift) & 255) * share + ((other >> shift) & 255) * (1 - share));
  return pack([part(0), part(8), part(16)]);
}

const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const gamma = (value) => (value <= 0.0031308 ? value * 12.92 : 1.055 * value ** (1 / 2.4) - 0.055);

// Source: Björn Ottosson, "A perceptual color space for image processing" (2020).
export function toLab(rgb) {
  const [r, g, b] = rgb.map((value) => linear(value / 255));
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function fromLab([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const rgb = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return rgb.map((value) => Math.round(255 * Math.min(1, Math.max(0, gamma(value)))));
}

const anchors = Object.fromEntries(Object.entries(SEQUENTIAL).map(([ground, texts]) => [ground, texts.map((text) => toLab(parse(text)))]));

// Return the colour at a position of the scale from 0 to 1 as [red, green, blue].
export function sequential(share, dark) {
  const some = dark ? anchors.dark : anchors.light;
  const place = Math.min(1, Math.max(0, share)) * (some.length - 1), below = Math.min(some.length - 2, Math.floor(place));
  const part = place - below;
  return fromLab(some[below].map((value, axis) => value + (some[below + 1][axis] - value) * part));
}

// Return a colour for each octet of a metric up to the octet `last` of its top. Octet 255 has no value and no colour.
// For viewers who see no values of others, the scale begins at OWN_FROM.
export function levels(last, dark, isOwn) {
  const found = new Uint32Array(256), from = isOwn ? OWN_FROM : 0;
  for (let octet = 0; octet < 255; octet++) found[octet] = pack(sequential(from + (1 - from) * Math.min(1, octet / last), dark));
  return found;
}

export const N_KINDS = KINDS.light.length;

// Return unordered colours for the octets 1 to N_KINDS.
export function kinds(dark) {
  const found = new Uint32Array(256);
  (dark ? KINDS.dark : KINDS.light).forEach((text, place) => { found[place + 1] = pack(parse(text)); });
  return found;
}

// Return the colours of allocated and shared squares, for the octets 1 and 2.
export function states(dark) {
  const found = new Uint32Array(256);
  (dark ? STATES.dark : STATES.light).forEach((text, place) => {
    found[place + 1] = pack(parse(text));
  });
  return found;
}
