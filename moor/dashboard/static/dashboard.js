// Draws the hosts of each cell or domain as tiles, and replaces the changing part of a page when the server has news.
"use strict";

const SIZE = 9;
const GAP = 2;
const COLOURS = {
  0: "#9fd8b5", 1: "#a8d59a", 2: "#b9d17f", 3: "#cfc866", 4: "#dfbf57", 5: "#eab54f", 6: "#eba04a", 7: "#e68744",
  8: "#de6c3d", 9: "#d45235", f: "#c8372d", s: "#111111", d: "#111111", x: "#111111", r: "#8893a8", c: "#8893a8", "?": "#8893a8",
};

function columnsOf(canvas) {
  return Math.max(1, Math.floor((canvas.clientWidth + GAP) / (SIZE + GAP)));
}

// The tile that the keyboard has chosen, by cell or domain: the arrows move it, Enter opens its host.
const chosen = {};

function draw(canvas) {
  const tiles = canvas.dataset.tiles;
  const columns = columnsOf(canvas);
  const height = Math.max(1, Math.ceil(tiles.length / columns)) * (SIZE + GAP);
  const scale = window.devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  for (let at = 0; at < tiles.length; at += 1) {
    pen.fillStyle = COLOURS[tiles[at]] || COLOURS["?"];
    const x = (at % columns) * (SIZE + GAP);
    const y = Math.floor(at / columns) * (SIZE + GAP);
    pen.fillRect(x, y, SIZE, SIZE);
    if ("sdx".includes(tiles[at])) {
      pen.strokeStyle = "#888888";
      pen.strokeRect(x + 0.5, y + 0.5, SIZE - 1, SIZE - 1);
    }
    if (document.activeElement === canvas && at === chosen[canvas.dataset.cell]) {
      pen.strokeStyle = window.getComputedStyle(document.body).color;
      pen.lineWidth = 2;
      pen.strokeRect(x, y, SIZE, SIZE);
      pen.lineWidth = 1;
    }
  }
}

function drawAll() {
  document.querySelectorAll("canvas.tiles").forEach(draw);
}

function meaningOf(tile) {
  const words = { f: "full", s: "silent", r: "draining", d: "down", x: "dead", c: "must clean up", "?": "not in placement" };
  return words[tile] || `${tile}0 % full or more`;
}

function openTile(canvas, number) {
  if (number < canvas.dataset.tiles.length) {
    window.location.assign(`${canvas.dataset.open}/${number}`);
  }
}

document.addEventListener("click", (event) => {
  const canvas = event.target.closest("canvas.tiles");
  if (!canvas) {
    return;
  }
  const column = Math.floor(event.offsetX / (SIZE + GAP));
  if (column < columnsOf(canvas)) {
    openTile(canvas, Math.floor(event.offsetY / (SIZE + GAP)) * columnsOf(canvas) + column);
  }
});

document.addEventListener("keydown", (event) => {
  const canvas = event.target.closest("canvas.tiles");
  if (!canvas) {
    return;
  }
  const { cell, tiles } = canvas.dataset;
  const number = chosen[cell] || 0;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columnsOf(canvas), ArrowDown: columnsOf(canvas) };
  if (event.key === "Enter") {
    openTile(canvas, number);
  } else if (event.key in steps) {
    const next = number + steps[event.key];
    if (next >= 0 && next < tiles.length) {
      chosen[cell] = next;
      document.getElementById("stream").textContent = `host ${next + 1} of ${tiles.length} in ${cell}: ${meaningOf(tiles[next])}`;
      draw(canvas);
    }
    event.preventDefault();
  }
});

document.addEventListener("focusin", (event) => {
  const canvas = event.target.closest("canvas.tiles");
  if (canvas) {
    chosen[canvas.dataset.cell] = chosen[canvas.dataset.cell] || 0;
    draw(canvas);
  }
});
document.addEventListener("focusout", (event) => {
  const canvas = event.target.closest("canvas.tiles");
  if (canvas) {
    window.setTimeout(() => draw(canvas));
  }
});

const FOCUSABLE = "a, canvas, [tabindex]";

// By it an element is found again after its part of the page was replaced.
function keyOf(element) {
  const { tagName, dataset } = element;
  return `${tagName} ${dataset.cell || element.getAttribute("href") || element.getAttribute("aria-label")}`;
}

// What has changed is replaced; the focus and what is scrolled stay where they are.
function show(live, page) {
  const news = document.createElement("template");
  news.innerHTML = page;
  const focused = live.contains(document.activeElement) ? keyOf(document.activeElement) : null;
  const scrolled = [...live.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  live.replaceChildren(news.content);
  live.querySelectorAll(".wide").forEach((each, at) => {
    each.scrollLeft = scrolled[at] || 0;
  });
  const again = [...live.querySelectorAll(FOCUSABLE)].find((each) => keyOf(each) === focused);
  if (again) {
    again.focus({ preventScroll: true });
  }
  drawAll();
}

const live = document.getElementById("live");
if (live) {
  const told = document.getElementById("stream");
  const stream = new EventSource(live.dataset.from);
  let last = "";
  stream.addEventListener(live.dataset.event, (event) => {
    if (event.data !== last) {
      last = event.data;
      show(live, event.data);
    }
    if (!document.activeElement.matches("canvas.tiles")) {
      told.textContent = "live";
    }
  });
  stream.addEventListener("trouble", (event) => {
    told.textContent = `not up to date: ${event.data}`;
  });
  stream.addEventListener("error", () => {
    told.textContent = "the connection is lost; it is tried again";
  });
  window.addEventListener("resize", drawAll);
  drawAll();
}

// Looks at a job again until it has ended.
const AGAIN_MS = 1500;

async function lookAgain() {
  const job = document.getElementById("job");
  if (!job || !("goesOn" in job.dataset)) {
    return;
  }
  try {
    const answer = await fetch(window.location.pathname, { redirect: "error" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const news = page.getElementById("job");
    // Screen readers read out what is replaced.
    if (news && news.outerHTML !== job.outerHTML) {
      job.replaceWith(news);
      document.title = page.title;
    }
  } catch {
    // The server is away, or the session has ended: it is tried again.
  }
  window.setTimeout(lookAgain, AGAIN_MS);
}

if (document.getElementById("job")) {
  window.setTimeout(lookAgain, AGAIN_MS);
}
