"use strict";
// Show the value under the pointer. The value is derived from the picture's colour and the colours of its key.
(() => {
  const heat = document.querySelector(".heat"), readout = document.getElementById("readout");
  if (!heat || !readout) return;
  const plot = heat.querySelector(".plot");
  const names = [...document.querySelectorAll("#gpus tbody th")].map((cell) => cell.textContent);
  const start = Number(heat.dataset.start), width = Number(heat.dataset.width);
  const moment = new Intl.DateTimeFormat("en-GB", {
    timeZone: heat.dataset.zone, month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  const known = new WeakMap();
  let marked = null;

  function pixels(image) {
    if (!known.has(image)) {
      const canvas = document.createElement("canvas");
      canvas.width = image.naturalWidth;
      canvas.height = image.naturalHeight;
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      known.set(image, context.getImageData(0, 0, canvas.width, canvas.height));
    }
    return known.get(image);
  }

  const isGap = ([r, , b, a]) => a > 0 && a < 250 && Math.abs(r - b) < 40;
  const apart = (data, at, colour) => colour.reduce((sum, part, i) => sum + (data[at + i] - part) ** 2, 0);

  function share(key, colour) { // return the position on the scale of the key's nearest colour
    let best = 0, least = Infinity;
    for (let i = 0; i < key.width; i++) {
      const away = apart(key.data, 4 * i, colour);
      if (away < least) [best, least] = [i, away];
    }
    return best / (key.width - 1);
  }

  function valueText(image, colour) {
    if (isGap(colour)) return "no data";
    const low = Number(image.dataset.low), high = Number(image.dataset.high);
    const key = heat.querySelector(`.key.${[...image.classList].join(".")} .ramp`);
    const value = low + share(pixels(key), colour) * (high - low);
    if (image.classList.contains("v-peers")) return `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(0)} % against peers`;
    return image.dataset.bytes === "1" ? `${(value / 1e6).toFixed(0)} MB/s` : `${(100 * value).toFixed(0)} %`;
  }

  plot.addEventListener("pointermove", (event) => {
    const image = [...plot.querySelectorAll("img")].find((one) => one.offsetParent !== null);
    if (!image || !image.naturalWidth) return;
    const box = image.getBoundingClientRect(), data = pixels(image);
    const column = Math.floor(((event.clientX - box.left) / box.width) * data.width);
    const row = Math.floor(((event.clientY - box.top) / box.height) * data.height);
    if (column < 0 || row < 0 || column >= data.width || row >= data.height) return;
    const at = 4 * (row * data.width + column), colour = [...data.data.slice(at, at + 4)];
    const when = moment.format(new Date(1000 * (start + column * width)));
    readout.textContent = `${names[row] ?? ""} · ${when} · ${image.dataset.title} ${valueText(image, colour)}`;
    marked = row;
  });
  plot.addEventListener("pointerleave", () => {
    if (marked !== null) readout.textContent = "\u00a0";
    marked = null;
  });
})();
