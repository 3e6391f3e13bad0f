// Draws the hosts of each cell as tiles, and replaces the changing part of the overview when the server has news.
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
  }
}

function drawAll() {
  document.querySelectorAll("canvas.tiles").forEach(draw);
}

document.addEventListener("click", (event) => {
  const canvas = event.target.closest("canvas.tiles");
  if (!canvas) {
    return;
  }
  const column = Math.floor(event.offsetX / (SIZE + GAP));
  const number = Math.floor(event.offsetY / (SIZE + GAP)) * columnsOf(canvas) + column;
  if (column < columnsOf(canvas) && number < canvas.dataset.tiles.length) {
    window.location.assign(`/tiles/${encodeURIComponent(canvas.dataset.cell)}/${number}`);
  }
});

const live = document.getElementById("live");
if (live) {
  const told = document.getElementById("stream");
  const stream = new EventSource("/live");
  stream.addEventListener("overview", (event) => {
    live.innerHTML = event.data;
    told.textContent = "live";
    drawAll();
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
    const stop = document.getElementById("stop");
    if (job && stop) {
      stop.remove();
    }
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
