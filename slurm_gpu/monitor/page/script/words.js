// Format numbers and times. A missing value is shown as a dash, and a measured 0 as 0.

export const GAP = "–";

// Format a count with up to three decimals, without Intl.NumberFormat, whose creation takes as long as drawing ten
// thousand squares.
export const count = (value) => value === null || value === undefined ? GAP : String(Math.round(1000 * value) / 1000).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
export const counts = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

// Format a value with its unit, with at most three significant digits.
export function amount(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return GAP;
  const whole = Math.abs(value) >= 100 || Number.isInteger(value);
  const text = whole ? count(Math.round(value)) : String(Number(value.toPrecision(value < 1 ? 1 : 2)));
  return unit ? `${text}\u00a0${unit}` : text;
}

// Format GPU-hours, with an adjective if given: 1 GPU-hour, 2.5 idle GPU-hours.
export function gpuHours(value, adjective = "") {
  const text = amount(value, "");
  return `${text}\u00a0${adjective && `${adjective} `}GPU-hour${text === "1" ? "" : "s"}`;
}

// Format an amount that is compared with a limit. Unlike `amount`, keep up to three decimals.
export const exact = (value, unit) => (unit ? `${count(value)}\u00a0${unit}` : count(value));

// Format joules in Wh, or in kWh if the value is at least 1 kWh.
export function energy(joules) {
  if (joules === null || joules === undefined) return GAP;
  return joules < 3.6e6 ? amount(joules / 3600, "Wh") : amount(joules / 3.6e6, "kWh");
}

// Format a duration in its largest unit or its two largest units.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return GAP;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole}\u00a0s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes}\u00a0min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 && hours < 10 ? `${hours}\u00a0h\u00a0${minutes % 60}\u00a0min` : `${hours}\u00a0h`;
  const days = Math.floor(hours / 24);
  return hours % 24 && days < 10 ? `${days}\u00a0d\u00a0${hours % 24}\u00a0h` : `${days}\u00a0d`;
}

// Format a share of the time. Only the whole time is shown as 100 %.
export const share = (fraction) => fraction === null || fraction === undefined ? GAP : `${Math.min(fraction < 1 ? 99 : 100, Math.round(100 * fraction))}\u00a0%`;

const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY_S = 86400;

const two = (value) => String(value).padStart(2, "0");

// The site's time zone, in which all pages show times; the browser's until the first answer.
let zone = null;
let clock = clockIn(undefined);

function clockIn(timeZone) {
  return new Intl.DateTimeFormat("en-GB", { timeZone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric" });
}

// Show times in this zone. An unknown zone is ignored.
export function setZone(name) {
  if (!name || name === zone) return;
  try {
    clock = clockIn(name);
    zone = name;
  } catch { /* the browser does not support this zone */ }
}

// Return {year, month, day, hour, minute, second} in the site's time zone.
function wallTime(at_s) {
  const parts = {};
  for (const { type, value } of clock.formatToParts(at_s * 1000)) parts[type] = Number(value);
  return parts;
}

const day = (at) => `${at.day} ${MONTHS[at.month - 1]}`;
const weekday = (at) => WEEKDAYS[new Date(Date.UTC(at.year, at.month - 1, at.day)).getUTCDay()];
const isSameDay = (one, other) => one.day === other.day && one.month === other.month && one.year === other.year;

// Format a time in the site's time zone, with the day unless it is the day of `now_s`.
export function moment(at_s, now_s, withSeconds = false) {
  if (!Number.isFinite(at_s)) return GAP;
  const at = wallTime(at_s), seconds = withSeconds ? `:${two(at.second)}` : "";
  const time = `${two(at.hour)}:${two(at.minute)}${seconds}`;
  if (isSameDay(at, wallTime(now_s))) return time;
  return `${Math.abs(at_s - now_s) < 6 * DAY_S ? weekday(at) : day(at)} ${time}`;
}

// Format a time of the day.
export function timeOf(at_s) {
  const { hour, minute } = wallTime(at_s);
  return `${two(hour)}:${two(minute)}`;
}

export const dayOf = (at_s) => day(wallTime(at_s));

// Return the start of a time's day, in seconds since 1970.
export function startOfDay(at_s) {
  const { hour, minute, second } = wallTime(at_s);
  return Math.floor(at_s) - 3600 * hour - 60 * minute - second;
}

export const zoneText = () => (zone === null ? "" : `Times are in the ${zone} time zone.`);

// Describe the latest time at which a running job's GPUs become free.
export function frees(job, now_s) {
  if (job.end_s === null || job.end_s === undefined) return "has no time limit";
  if (job.end_s <= now_s) return "is at its time limit";
  return `frees by ${moment(job.end_s, now_s)}, in ${duration(job.end_s - now_s)}`;
}

const ABOUT = {
  xid: ["GPU error", "A GPU reported an error (XID).", "Save a checkpoint and notify the operators, who may drain the node."],
  never_used: ["allocated, never used", "The job's GPUs have computed nothing since it started.", "Check whether the program finds its GPUs. If the job does not need GPUs, cancel it to free them for others."],
  used_then_idle: ["used, then idle", "The job's GPUs were used, but are now idle.", "If the job's work is done, cancel the job; if it waits for data or input, end it and start it again later."],
  memory_idle: ["memory full, idle", "GPU memory is full, but the GPU is idle.", "A process hangs, or keeps memory that it no longer needs: check the job's log."],
  partly_unused: ["some never used", "Some of the job's GPUs were never used.", "Request as many GPUs as the program uses, or start one process for each GPU."],
  throttled: ["throttled", "Clocks are throttled by heat or the power supply.", "The job itself is fine; the operators should check the node's cooling and power."],
};

// Return the short name of an alert, its meaning, and advice. For an alert with a verdict, these are the verdict's
// texts.
export function alertText({ alert: name, verdict }) {
  if (verdict) {
    const confidence = `${Math.round(100 * verdict.confidence)} % confidence`;
    return { short: verdict.cause, what: `${verdict.kind ? `${verdict.kind}: ` : ""}${verdict.text} (${confidence}).`, todo: verdict.next_step };
  }
  const [short, what, todo] = ABOUT[name] ?? [name, name, ""];
  return { short, what, todo };
}
