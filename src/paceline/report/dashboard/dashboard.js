// Shows what the search does now. Everything from the study is set as text, never as HTML.
(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const element = (tag, kind, text) => {
    const made = document.createElement(tag);
    if (kind) { made.className = kind; }
    if (text !== undefined) { made.textContent = text; }
    return made;
  };

  function number(value) {
    if (value === null || value === undefined) { return "-"; }
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toPrecision(4) : value.toFixed(4);
  }

  function clock(seconds) {
    const whole = Math.max(0, Math.round(seconds));
    const two = (part) => String(part).padStart(2, "0");
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  }

  function slotOf(slot) {
    if (slot === null) { return element("div", "slot free", "free"); }
    const made = element("div", "slot");
    made.append(element("div", "", `trial ${slot.trial}: ${number(slot.value)}`));
    const bar = element("progress");
    bar.max = Math.max(1, slot.epochs);
    bar.value = slot.epoch;
    bar.setAttribute("aria-label", `epoch ${slot.epoch} of ${slot.epochs}`);
    made.append(bar, element("div", "dim", `epoch ${slot.epoch} of ${slot.epochs}`));
    return made;
  }

  function packOf(pack) {
    const made = element("div", "pack");
    const taken = pack.slots.filter((slot) => slot !== null).length;
    const said = `program ${pack.program}, plan ${pack.plan}: ${taken} of ${pack.slots.length} slots`;
    const slots = element("div", "slots");
    slots.append(...pack.slots.map(slotOf));
    made.append(element("div", "dim", said), slots);
    return made;
  }

  function show(found) {
    byId("study").textContent = found.study;
    document.title = `${found.study}: Paceline`;
    const state = found.state;
    if (state === null) {
      byId("state").textContent =
        "No search is running on this study. This page shows the next one as soon as it runs.";
      return;
    }
    const now = state.progress;
    const ended = now.n_complete + now.n_pruned + now.n_failed;
    const total = now.n_trials === null ? "" : ` of ${now.n_trials}`;
    const parts = [
      found.running ? now.phase : "not searched now",
      `${ended}${total} trials`, `${now.n_running} running`,
    ];
    if (now.n_pruned) { parts.push(`${now.n_pruned} stopped early`); }
    if (now.n_failed) { parts.push(`${now.n_failed} failed`); }
    if (now.n_rejected) { parts.push(`${now.n_rejected} rejected`); }
    if (found.running && now.rate !== null) {
      const rate = now.rate;
      parts.push(`${rate >= 100 ? Math.round(rate) : rate.toPrecision(3)} trial-epochs/s`);
    }
    if (found.running && now.seconds_left !== null) {
      parts.push(`${clock(now.seconds_left)} left`);
    }
    if (now.busy !== null) {  // of the epochs trained: gaps between them do not count
      parts.push(`slots ${Math.round(100 * now.busy)} % filled while training`);
    }
    if (now.devices !== null) { parts.push(now.devices); }
    byId("state").textContent = parts.join(", ");
    byId("bar").style.width = now.n_trials ? `${Math.min(100, 100 * ended / now.n_trials)}%` : 0;
    const values = Object.entries(now.best_hparams).map(([name, value]) =>
      `${name} ${typeof value === "number" ? Number(value.toPrecision(6)) : value}`);
    byId("best").textContent = now.best_number === null ? "" :
      `best ${now.objective}: ${number(now.best_value)}, trial ${now.best_number}` +
      (values.length ? ` (${values.join(", ")})` : "") +
      (now.others.length && now.n_front ? `; ${now.n_front} on the Pareto front` : "");
    const packs = found.running ? state.packs : [];
    byId("packs").replaceChildren(...packs.map(packOf));
    byId("none").hidden = packs.length > 0;
    byId("notes").replaceChildren(...state.notes.map((note) => element("li", "", note)));
  }

  const events = new EventSource("/paceline/events");
  events.onmessage = (event) => show(JSON.parse(event.data));
  events.onerror = () => { byId("state").textContent = "The dashboard's server has stopped."; };
})();
