// Draws each figure when it comes near the window, one at a time, in the page's colours.
(() => {
  "use strict";
  const CONFIG = {
    responsive: true, displaylogo: false, showTips: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();
  const waiting = [];
  let working = false;

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return { ink: of("--ink"), rule: of("--rule"), page: of("--page") };
  }

  function narrow() { return window.innerWidth < 600; }

  function layoutOf(figure, height) {
    const { ink, rule, page } = colours();
    const axis = { gridcolor: rule, zerolinecolor: rule, linecolor: rule, automargin: true };
    const template = {
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { color: ink, family: "system-ui, DejaVu Sans, sans-serif", size: 12 },
        xaxis: axis, yaxis: axis, hoverlabel: { bgcolor: page, font: { color: ink } },
        coloraxis: { colorbar: { outlinewidth: 0 } },
      },
    };
    const named = figure.data.filter((t) => t.name && t.showlegend !== false).length;
    const legend = named > 1 && figure.layout.showlegend !== false;
    const layout = Object.assign({}, figure.layout, {
      template, height, autosize: true, title: undefined,
      // The tool bar has the uppermost 28 pixels for itself, the legend those below: nothing lies
      // on points or on the title of an axis.
      margin: { l: narrow() ? 40 : 60, r: narrow() ? 12 : 24, t: legend ? 56 : 32, b: 48 },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: ink, activecolor: ink },
    });
    if (figure.parallel) {
      layout.paper_bgcolor = page; // its canvas is white where this is transparent
      layout.margin = { l: 60, r: 40, t: 76, b: 40 };
    }
    return layout;
  }

  function draw(element) {
    const figure = JSON.parse(document.getElementById(element.dataset.figure).textContent);
    const height = Number(element.dataset.height);
    figure.parallel = figure.data.some((trace) => trace.type === "parcoords");
    for (const trace of figure.data) {
      if (trace.type === "parcoords") {
        trace.labelfont = trace.tickfont = { color: colours().ink };
        trace.rangefont = { color: colours().ink };
        // The best lines stand out from the page, whichever colour that has.
        if (dark.matches) {
          trace.line.colorscale =
            [[0, "#22272e"], [0.49, "#59626c"], [0.51, "#26384d"], [1, "#8fd0ff"]];
        }
      }
    }
    drawn.set(element, figure);
    // Where there is no mouse, the tool bar would lie there all the time.
    const config = Object.assign({}, CONFIG, narrow() ? { displayModeBar: false } : {});
    return Plotly.newPlot(element, figure.data, layoutOf(figure, height), config);
  }

  // One figure for each idle moment, so that scrolling never waits for several.
  function work() {
    const element = waiting.shift();
    if (element === undefined) { working = false; return; }
    working = true;
    Promise.resolve(draw(element)).catch(() => {
      element.textContent = "This figure cannot be drawn by this browser.";
    }).finally(() => setTimeout(work, 30));
  }

  function want(element) {
    if (drawn.has(element) || waiting.includes(element)) { return; }
    waiting.push(element);
    if (!working) { working = true; setTimeout(work, 30); }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const figures = document.querySelectorAll(".figure");
    if (typeof Plotly === "undefined") {
      for (const element of figures) { element.textContent = "Figures need JavaScript."; }
      return;
    }
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) { want(entry.target); observer.unobserve(entry.target); }
      }
    }, { rootMargin: "300px" });
    for (const element of figures) {
      // WebGL starts slowly: what needs it is drawn while the page opens, and not while it scrolls.
      if (element.dataset.now !== undefined) { want(element); } else { observer.observe(element); }
    }
    dark.addEventListener("change", () => {
      for (const element of [...drawn.keys()]) { drawn.delete(element); want(element); }
    });
    window.addEventListener("beforeprint", () => {
      for (const element of figures) { if (!drawn.has(element)) { draw(element); } }
    });
  });
})();
