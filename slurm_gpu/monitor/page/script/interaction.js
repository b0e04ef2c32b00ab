// Handle pointer and keyboard on the squares: focus, zoom, and selection of squares.

import { neighbour } from "./layout.js";
import { css } from "./scale.js";

const STEP = 1.6; // the factor of one step of the zoom
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Handle the events of a map of squares (see squares.js).
export function listen(squares) {
  const { over, frame } = squares, down = new Map();
  let dragged = false, spread = 0;
  const boxing = new Boxing(squares);
  over.addEventListener("pointermove", (event) => {
    if (boxing.move(event)) return;
    const before = down.get(event.pointerId);
    if (before !== undefined) {
      down.set(event.pointerId, [event.clientX, event.clientY]);
      if (down.size === 2) {
        const [[ax, ay], [bx, by]] = [...down.values()], now = Math.hypot(ax - bx, ay - by), box = over.getBoundingClientRect();
        if (spread > 0 && Math.abs(now / spread - 1) > 0.04) {
          squares.zoomBy(now / spread, (ax + bx) / 2 - box.left, (ay + by) / 2 - box.top);
          spread = now;
        }
        dragged = true;
      } else if (!squares.isWhole() && (dragged || Math.hypot(event.clientX - before[0], event.clientY - before[1]) > 3)) {
        dragged = true;
        squares.panBy(event.clientX - before[0], event.clientY - before[1]);
      } else {
        down.set(event.pointerId, before);
      }
      return;
    }
    if (event.pointerType === "mouse") hover(squares.at(event), event);
  });
  const hover = (square, event) => {
    if (square !== squares.hover) {
      squares.hover = square;
      squares.mark();
    }
    squares.handlers.hovered(square, event);
  };
  over.addEventListener("pointerleave", (event) => hover(-1, event));
  over.addEventListener("pointerdown", (event) => {
    if (boxing.begin(event)) return;
    down.set(event.pointerId, [event.clientX, event.clientY]);
    if (down.size === 1) dragged = false;
    if (down.size === 2) {
      const [[ax, ay], [bx, by]] = [...down.values()];
      spread = Math.hypot(ax - bx, ay - by);
    }
    if (!squares.isWhole()) over.setPointerCapture(event.pointerId);
  });
  const up = (event) => {
    if (boxing.end(event)) return;
    const was = down.delete(event.pointerId);
    if (event.type === "pointerup" && was && !dragged && event.button === 0) {
      const square = squares.at(event);
      squares.setFocus(square);
    }
  };
  over.addEventListener("pointerup", up);
  over.addEventListener("pointercancel", up);
  over.addEventListener("dblclick", (event) => {
    const square = squares.at(event);
    if (square >= 0) squares.handlers.opened(square);
  });
  over.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // otherwise the page scrolls
    event.preventDefault();
    const box = over.getBoundingClientRect();
    squares.zoomBy(event.deltaY < 0 ? STEP : 1 / STEP, event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  frame.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || squares.places === null || squares.places.n === 0) return;
    if (press(squares, event.key)) event.preventDefault();
  });
}

// Select squares, or deselect them if all of them are selected.
function toggle(squares, some) {
  const rest = new Set([...squares.selection].filter((square) => !some.includes(square)));
  squares.select(rest.size + some.length === squares.selection.size ? rest : [...squares.selection, ...some]);
  squares.handlers.selected();
}

// Selects squares while the shift key is held: a click selects one square, and a drag selects those in a box.
class Boxing {
  constructor(squares) {
    this.squares = squares;
    this.from = null;
  }

  begin(event) {
    if (!event.shiftKey || event.button !== 0 || this.squares.places === null) return false;
    this.from = this.to = this.point(event);
    this.squares.over.setPointerCapture(event.pointerId);
    return true;
  }

  move(event) {
    if (this.from === null) return false;
    const { squares } = this;
    this.to = this.point(event);
    squares.mark();
    const [left, top, right, bottom] = this.box();
    squares.marked = true;
    squares.above.strokeStyle = css(squares.inks.accent);
    squares.above.lineWidth = squares.unit;
    squares.above.strokeRect(left + 0.5, top + 0.5, right - left, bottom - top);
    return true;
  }

  end(event) {
    if (this.from === null) return false;
    const [left, top, right, bottom] = this.box(), { squares } = this, side = squares.zoom.pitch - squares.places.line, some = [];
    for (let square = 0; square < squares.places.n; square++) {
      const [x, y] = squares.corner(square);
      if (x <= right && x + side >= left && y <= bottom && y + side >= top) some.push(square);
    }
    this.from = null;
    squares.mark();
    if (event.type === "pointerup" && some.length) toggle(squares, some);
    return true;
  }

  // Return the position of the pointer in pixels of the canvas.
  point(event) {
    const box = this.squares.over.getBoundingClientRect();
    return [(event.clientX - box.left) * this.squares.unit, (event.clientY - box.top) * this.squares.unit];
  }

  box() {
    const [[ax, ay], [bx, by]] = [this.from, this.to];
    return [Math.min(ax, bx), Math.min(ay, by), Math.max(ax, bx), Math.max(ay, by)];
  }
}

// Handle a key; return whether it has a function here.
function press(squares, key) {
  const { places, focus, cluster } = squares;
  if (ARROWS[key]) squares.setFocus(focus < 0 ? 0 : neighbour(places, focus, ARROWS[key]));
  else if (key === "Home") squares.setFocus(0);
  else if (key === "End") squares.setFocus(places.n - 1);
  else if (key === "PageDown" || key === "PageUp") {
    const nodes = cluster.flat.nodes, step = key === "PageDown" ? 1 : -1;
    const next = focus < 0 ? 0 : Math.min(nodes.length - 1, Math.max(0, cluster.nodeOf[focus] + step));
    squares.setFocus(nodes[next].first);
  } else if (key === "n" || key === "p") squares.setFocus(nextMarked(squares, key === "n" ? 1 : -1));
  else if (key === "Enter") {
    if (focus >= 0) squares.handlers.opened(focus);
  } else if (key === "+" || key === "=") zoomAtFocus(squares, STEP);
  else if (key === "-") zoomAtFocus(squares, 1 / STEP);
  else if (key === "0") squares.whole();
  else if (key === " ") {
    if (focus >= 0) toggle(squares, [focus]);
  } else if (key === "Escape") {
    if (focus < 0 && !squares.selection.size) return false;
    if (squares.selection.size) {
      squares.select([]);
      squares.handlers.selected();
    } else squares.setFocus(-1);
  } else return false;
  return true;
}

function zoomAtFocus(squares, factor) {
  if (squares.focus < 0) return squares.zoomBy(factor);
  const [x, y] = squares.corner(squares.focus);
  squares.zoomBy(factor, x / squares.unit, y / squares.unit);
  squares.reveal(squares.focus);
}

// Return the next highlighted square or, without highlights, the next square with a ring; `focus` if there is none.
function nextMarked({ lit, ring, focus, places }, step) {
  const marks = lit ?? ring;
  for (let offset = 1; offset <= places.n; offset++) {
    const square = (focus + step * offset + 2 * places.n) % places.n;
    if (marks[square]) return square;
  }
  return focus;
}
