// Put at the end of a page by tests/report.rs: looks at what the browser has drawn and leaves what it sees in the page.
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const box = (element) => element.getBoundingClientRect();

// Every fold is opened first: what is folded has no size.
all("details").forEach((details) => (details.open = true));

const crossing = (a, b) =>
  Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;

// Labels that stick out of their drawing or lie on one another; slanted ones are judged by their middle alone.
function misplaced(svg) {
  const found = [];
  const labels = all("text", svg).map((text) => ({ text: text.textContent, box: box(text), slanted: text.hasAttribute("transform") }));
  const frame = box(svg);
  for (const { text, box } of labels) {
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1) {
      found.push(`"${text}" sticks out`);
    }
  }
  const upright = labels.filter((label) => !label.slanted);
  upright.forEach((a, i) => upright.slice(i + 1).forEach((b) => {
    if (crossing(a.box, b.box)) found.push(`"${a.text}" lies on "${b.text}"`);
  }));
  return found;
}

// How large the picture is by its own header, and the share of its diagonal that is drawn.
function picture(element) {
  const header = atob(element.getAttribute("href").split(",")[1].slice(0, 32));
  const number = (at) => [0, 1, 2, 3].reduce((sum, i) => sum * 256 + header.charCodeAt(at + i), 0);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [number(16), number(20)];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(element, 0, 0, canvas.width, canvas.height);
  const side = Math.min(canvas.width, canvas.height);
  let diagonal = 0;
  for (let i = 0; i < side; i++) diagonal += context.getImageData(i, i, 1, 1).data[3] > 0;
  return { width: canvas.width, height: canvas.height, diagonal: diagonal / side };
}

function matrix(details) {
  const ell = details.querySelector("line.ell");
  const bins = all("g.bin", details).map(box);
  const bars = all("rect.bar", details);
  return {
    name: details.querySelector("h2").textContent,
    bars: bars.length,
    flat_bars: bars.filter((bar) => box(bar).width < 0.5).length,
    chosen: all("text.name.chosen", details).map((text) => text.textContent),
    names: all("text.name", details).map((text) => text.textContent),
    // How many bins of the histogram lie left of the threshold.
    bins: bins.length,
    bins_before_ell: ell && bins.filter((bin) => (bin.left + bin.right) / 2 < box(ell).left).length,
    sections: all("line.section", details).length,
    points: all(".scatter circle", details).length,
    roofline: all("path.roofline", details).length,
    pictures: all("image", details).map(picture),
    decision: details.querySelector("pre").textContent,
    remarks: all(".remarks li", details).map((item) => item.textContent),
  };
}

// Pictures are there once all is loaded.
window.addEventListener("load", () => {
  const seen = {
    title: document.title,
    matrices: all("details.matrix").map(matrix),
    regrets: all("circle.regret").length,
    classes: all("table.classes tbody th").map((cell) => cell.textContent),
    links: all("table.index a").filter((a) => document.querySelector(a.getAttribute("href"))).length,
    mute: all("svg").filter((svg) => svg.getAttribute("role") !== "img" || !svg.getAttribute("aria-label")).length,
    misplaced: all("svg").flatMap(misplaced),
    overflow: document.documentElement.scrollWidth - window.innerWidth,
  };
  const pre = document.createElement("pre");
  pre.id = "probe";
  pre.textContent = JSON.stringify(seen);
  document.body.append(pre);
});
